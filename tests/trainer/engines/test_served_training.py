"""Training with `vllm_mode` server, on a stand-in that samples from the weights it is sent."""

import pytest
import torch
from fake_vllm import ServedModel, fake_vllm
from on_two_processes import run_on_two_processes
from trainer_cases import length_reward, logged, text_trainer, weights

from trainer.engines.requests import Draw, Request
from trainer.engines.vllm.server_http import ServerError

SERVED = {"use_vllm": True, "vllm_mode": "server", "vllm_server_timeout": 20.0, "save_strategy": "steps"}
SERVED |= {"save_steps": 1, "max_steps": 3, "learning_rate": 0.3}
SERVED |= {"max_prompt_length": 100, "max_thought_length": 6, "max_answer_length": 4}


@pytest.fixture
def server(tiny_text):
    with fake_vllm(ServedModel(tiny_text[1])) as (fake, url):
        fake.url = url
        yield fake


def trainer_of(tiny_text, folder, server, **changes):
    return text_trainer(tiny_text, folder, rows=4, **SERVED | {"vllm_server_base_url": server.url} | changes)


def test_the_server_samples_from_the_weights_of_each_step(tiny_text, tmp_path, server, capsys):
    trainer = trainer_of(tiny_text, tmp_path, server)
    start = weights(trainer)
    trainer.train()
    assert max((value - start[name]).abs().max() for name, value in weights(trainer).items()) > 1e-3
    assert len(logged(trainer, "sampling/policy_gap_max")) == 3
    assert max(logged(trainer, "sampling/policy_gap_max")) < 0.05, "forbidden tokens alone, which training counts"
    assert server.version.endswith(":3") and server.calls.count("load_folder") == 3
    assert not (tmp_path / "vllm_weights").exists()
    assert "log-probs differ by at most" in capsys.readouterr().out


class ClosedThoughts(ServedModel):
    """Every thought ends with its third to fifth token."""

    def __init__(self, model, ending: list[int]):
        super().__init__(model)
        self.ending = ending

    def draw(self, probabilities, ids, arguments, index):
        closed = any(ids[place : place + len(self.ending)] == self.ending for place in range(len(ids)))
        if not closed and 2 <= index < 2 + len(self.ending):
            return self.ending[index - 2]
        return super().draw(probabilities, ids, arguments, index)


@pytest.mark.parametrize("mode", ["redraw", "grow"])
def test_prompts_without_signal_are_replaced_or_get_further_answers(tiny_text, tmp_path, mode):
    """Both are sampled by the server, in the same generation and from the same weights."""

    def reward(completions, record, **kwargs):
        values = length_reward(completions)
        return [0.0 if one["answer"] == 0 else value for one, value in zip(record, values, strict=True)]

    changes = {"on_zero_spread": mode} | ({"grow_budget": 0.5} if mode == "grow" else {})
    changes |= {"reward": reward, "max_steps": 1, "gradient_accumulation_steps": 2}
    with fake_vllm(ClosedThoughts(tiny_text[1], tiny_text[2].encode("</think>"))) as (fake, url):
        fake.url = url
        trainer = trainer_of(tiny_text, tmp_path, fake, **changes)
        trainer.train()
    names = [tree.prompt_id for tree in trainer.generation.rollout.trees]
    assert logged(trainer, f"{mode}/share") == [0.5]
    if mode == "redraw":
        assert len(names) == 2 and "row-0" not in names
        assert len(fake.requests) == 3 * (2 + 4), "thoughts and answers of two prompts, and of one more"
    else:
        assert "row-0" in names and len(trainer.generation.training.scored.row_tree) == 8 + 4
        assert len(fake.requests) == 2 * (2 + 4) + 4
    assert fake.calls.count("load_folder") == 1
    assert max(logged(trainer, "sampling/policy_gap_max")) < 0.05, "forbidden tokens alone, which training counts"


FAULTS = {"dies": "does not answer", "weights": "sampled with the weights another:4"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_the_run_goes_on_from_its_checkpoint_as_if_nothing_had_happened(
    tiny_text, tmp_path, server, fault
):
    whole = trainer_of(tiny_text, tmp_path / "whole", server)
    whole.train()
    broken = trainer_of(tiny_text, tmp_path / "broken", server)
    loads = server.calls.count("load_folder")
    sound = server.receive

    def receive(body):
        server.fault = fault if server.calls.count("load_folder") == loads + 2 else None
        return sound(body)

    server.receive = receive
    with pytest.raises(ServerError, match=FAULTS[fault] + ".*continue with --resume auto"):
        broken.train()
    assert broken.state.global_step == 1
    server.receive, server.fault = sound, None
    resumed = trainer_of(tiny_text, tmp_path / "broken", server)
    resumed.train(resume_from_checkpoint=str(tmp_path / "broken" / "checkpoint-1"))
    assert resumed.state.global_step == 3
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


@pytest.mark.slow
def test_weights_that_are_replaced_while_they_are_sampled_from_are_found_after_the_generation(
    tiny_text, tmp_path, server
):
    trainer = trainer_of(tiny_text, tmp_path, server)
    sound = server.events

    def events(body):
        yield from sound(body)
        server.version = "another:1"

    server.events = events
    with pytest.raises(ServerError, match="another:1"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_an_adapter_is_sent_under_a_new_name_and_the_last_one_is_dropped(tiny_text, tmp_path, server):
    trainer = trainer_of(tiny_text, tmp_path, server)
    requests, versions = trainer.serving.requests, set()
    for step in range(2):
        requests.load_adapter(lambda folder: (folder / "adapter_model.safetensors").write_text("weights"))
        requests.add(Request(str(step), [5, 6], [], 3, Draw(step, 1.0, 0, 1.0, 0.0, 1.0)))
        assert len(requests.step()) == 1
        requests.abort([str(step)])
        requests.rest()
        versions.add(server.version)
        assert server.adapters == {requests.adapter: ["adapter_model.safetensors"]}
    assert len({body["model"] for body in server.requests}) == len(versions) == 2
    assert server.requests[-1]["model"] == requests.adapter
    assert not (tmp_path / "vllm_weights").exists()


def test_a_folder_that_cannot_be_written_ends_the_run_with_one_sentence(tiny_text, tmp_path, server):
    trainer = trainer_of(tiny_text, tmp_path, server)

    def save(folder):
        raise OSError("No space left on device")

    with pytest.raises(ServerError, match=r"cannot be written to .*vllm_weights .No space left on device."):
        trainer.serving.requests.load_adapter(save)


@pytest.mark.slow
def test_two_processes_train_on_one_server_and_one_of_them_sends_the_weights(tiny_text_dir, tmp_path, server):
    run_on_two_processes("tests/support/served_case.py", tmp_path, tiny_text_dir, server.url, timeout=240)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert server.calls.count("load_folder") == 2 and server.version.endswith(":2")
    assert len(first["gaps"]) == 2 and max(first["gaps"]) < 0.05, "the second step's weights were sent"
    assert first["trees"] != second["trees"]
    assert all(torch.equal(value, second["weights"][name]) for name, value in first["weights"].items())
