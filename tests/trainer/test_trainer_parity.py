"""Chains, and trees of one answer a thought, are TRL's own GRPO: same loss, same gradients on the same completions."""

import copy

import pytest
import torch
import trl
from datasets import Dataset
from trainer_cases import (
    Recorder,
    chain_tree,
    largest_gap,
    norm,
    run,
    script,
    settings,
    text_rows,
    text_trainer,
    thought_tree,
)
from trainer_cases import move as perturb

PROMPTS, GROUP = 2, 4
DERIVED = {"steps_per_generation", "generation_batch_size"}  # TRL takes one of them, and derives both


def completions(prompt: int) -> list[list[int]]:
    """GROUP completions of unequal length, each with the number of tokens its thought has."""
    generator = torch.Generator().manual_seed(prompt)
    lengths = torch.randint(4, 16, (GROUP,), generator=generator).tolist()
    return [torch.randint(300, 600, (length,), generator=generator).tolist() for length in lengths]


def reward(completion_ids, **kwargs):
    return [sum(ids) % 97 / 97 for ids in completion_ids]


class StockTrainer(trl.GRPOTrainer):
    """TRL's trainer, with completions given instead of sampled."""

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        self.seen_prompts = [list(ids) for ids in prompt_ids]
        assert len(prompt_ids) == PROMPTS * GROUP
        return [ids for prompt in range(PROMPTS) for ids in completions(prompt)], None


def stock_step(tiny_text, folder, **changes):
    _, model, tokenizer = tiny_text
    ours = settings(folder, method="grpo", num_generations=GROUP, max_completion_length=16, **changes)
    same = vars(ours).keys() & trl.GRPOConfig.__dataclass_fields__.keys() - DERIVED
    rows = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in text_rows(PROMPTS)]
    trainer = StockTrainer(
        model=copy.deepcopy(model),
        processing_class=tokenizer,
        reward_funcs=reward,
        args=trl.GRPOConfig(**{name: getattr(ours, name) for name in same}),
        train_dataset=Dataset.from_list(rows),
    )
    perturb(trainer.model, 0.01)
    recorder = Recorder(trainer)
    trainer.train()
    return trainer, recorder


def scripted_step(tiny_text, folder, monkeypatch, method, **changes):
    def make_tree(prompt_id, policy):
        ids = completions(int(prompt_id.removeprefix("row-")))
        if method == "grpo":
            return chain_tree(prompt_id, ids)
        return thought_tree(prompt_id, [row[: len(row) // 2] for row in ids], [[row[len(row) // 2 :]] for row in ids])

    script(monkeypatch, make_tree)
    chains, thoughts = {"num_generations": GROUP, "max_completion_length": 16}, {"think_num": GROUP, "answer_num": 1}
    shape = chains if method == "grpo" else thoughts
    trainer = text_trainer(
        tiny_text, folder, rows=PROMPTS, reward=reward, perturb=0.01, method=method, **shape, **changes
    )
    return trainer, run(trainer)


def check_against_stock(tiny_text, tmp_path, monkeypatch, **changes):
    """Asserts that both methods have TRL's loss and gradients; returns its trainer and both of ours."""
    found = []
    stock, expected = stock_step(tiny_text, tmp_path / "stock", **changes)
    assert norm(expected.gradients[0]) > 0.1
    for method in ("grpo", "grpo_ma"):
        ours, got = scripted_step(tiny_text, tmp_path / method, monkeypatch, method, **changes)
        assert [list(p.ids) for p in ours.generation.rollout.prompts] == stock.seen_prompts[::GROUP]
        assert sum(got.losses) == pytest.approx(sum(expected.losses), abs=1e-5)
        assert norm(got.gradients[0]) == pytest.approx(norm(expected.gradients[0]), rel=1e-5)
        assert largest_gap(got.gradients[0], expected.gradients[0]) < 1e-5 * norm(expected.gradients[0])
        found.append(ours)
    return stock, found


CASES = [
    ("grpo", 0.0, 1),
    ("grpo", 0.04, 1),
    ("dapo", 0.0, 1),
    ("dapo", 0.04, 1),
    ("dapo", 0.0, 2),
    ("grpo", 0.04, 2),
    ("dr_grpo", 0.04, 1),
    ("cispo", 0.0, 1),
]


@pytest.mark.parametrize(("loss_type", "beta", "window"), CASES)
def test_same_loss_and_gradients_as_stock(tiny_text, tmp_path, monkeypatch, loss_type, beta, window):
    changes = {
        "loss_type": loss_type,
        "beta": beta,
        "gradient_accumulation_steps": window,
        "per_device_train_batch_size": PROMPTS * GROUP // window,
        **({"epsilon_high": 5.0} if loss_type == "cispo" else {}),
    }
    stock, both = check_against_stock(tiny_text, tmp_path, monkeypatch, **changes)
    for ours in both:
        if beta and window == 1:  # the log averages micro-batches, which TRL fills in another order
            assert ours.state.log_history[0]["kl"] == pytest.approx(stock.state.log_history[0]["kl"], rel=1e-4)
            assert ours.state.log_history[0]["kl"] > 1e-3


@pytest.mark.parametrize("scale", ["batch", "none"])
def test_same_loss_and_gradients_as_stock_under_other_scales(tiny_text, tmp_path, monkeypatch, scale):
    check_against_stock(tiny_text, tmp_path, monkeypatch, scale_rewards=scale, per_device_train_batch_size=8)


def test_advantages_are_bit_for_bit_the_same_for_both_methods(tiny_text, tmp_path, monkeypatch):
    """T_K A_1 is plain GRPO: not only close to it."""
    seen = {}
    for method in ("grpo", "grpo_ma"):
        trainer, _ = scripted_step(tiny_text, tmp_path / method, monkeypatch, method)
        seen[method] = trainer._buffered_inputs[0]["advantages"]
    assert torch.equal(seen["grpo"], seen["grpo_ma"])
    assert seen["grpo"].shape == (GROUP,)
    assert seen["grpo"].abs().min() > 0
