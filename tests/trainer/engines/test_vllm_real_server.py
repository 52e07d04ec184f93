"""A real `vllm serve`, started by scripts/vllm_server.py: exact before and after new weights, trained on, killed."""

import copy

import pytest
import torch
from engine_cases import assert_dense, assert_sound, encode, grow
from real_vllm_server import real_vllm_server
from trainer_cases import logged, move, vlm_trainer

from trainer.engines.request_engine import RequestEngine
from trainer.engines.sampling import Sampling
from trainer.engines.vllm.served import Served
from trainer.engines.vllm.server import VLLMServer, facts_of
from trainer.engines.vllm.server_http import ServerError, ServerHTTP
from trainer.engines.weights import whole_weights
from trainer.policies.thought_answer import ThoughtAnswerPolicy

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


class Alone:
    """The only process of a run."""

    rank, count = 0, 1

    def objects(self, items):
        return items


@pytest.fixture(scope="module")
def server(tiny_model_dir):
    """(url, process) of a server with the shipped model."""
    with real_vllm_server(tiny_model_dir) as server:
        yield server


def test_log_probs_are_the_dense_ones_before_and_after_new_weights(tiny_vlm, server, tmp_path):
    module, model, processor = tiny_vlm
    model = copy.deepcopy(model)
    connection = VLLMServer(ServerHTTP(server[0], 600.0), "run")
    facts, ends = facts_of(model.config), module.eos_token_ids(processor)
    found = connection.connect(facts, module.forbidden_token_ids(processor), tokens=1024)
    requests = Served(connection, found, model.config, ends, tmp_path / "weights", Alone())
    engine = RequestEngine(requests, module.tokenizer, Sampling(), ends)
    prompts = [encode(module, "None."), encode(module, "One?", (84, 56)), encode(module, "Two!", (56, 84), (112, 56))]
    seen = []
    for _ in range(2):
        with torch.no_grad():
            requests.load(whole_weights(model))
        trees = grow(engine, prompts, ThoughtAnswerPolicy(2, 2, 24, 8, "o"))
        for prompt, tree in zip(prompts, trees, strict=True):
            assert_sound(tree, ends)
            assert_dense((module, model, processor), prompt, tree, atol=1e-4)
        requests.rest()
        seen.append([tree.tokens(leaf) for tree in trees for leaf in tree.leaves()])
        move(model, 0.02)  # vision too
    assert seen[0] != seen[1]


def test_a_run_trains_on_it_and_ends_with_one_sentence_when_it_is_killed(tiny_vlm, server, tmp_path):
    settings = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": server[0], "vllm_server_timeout": 60.0}
    settings |= {"max_prompt_length": 900, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    trainer = vlm_trainer(tiny_vlm, tmp_path, rows=3, learning_rate=0.1, **settings)
    sound, grown = trainer._prefetch, []

    def prefetch():
        grown.append(trainer.state.global_step)
        if len(grown) == 3:
            server[1].kill()
        return sound()

    trainer._prefetch = prefetch
    trainer.train()  # the last generation was sampled before the server died, and is trained on
    assert max(logged(trainer, "sampling/policy_gap")) < 0.02
    with pytest.raises(ServerError, match="does not answer"):
        trainer.train()
    assert (tmp_path / "checkpoint-3").exists()
