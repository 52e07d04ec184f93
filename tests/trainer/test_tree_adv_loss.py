"""Loss and gradients of a forest with advantages of its segments, against arithmetic written out here."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from forest_cases import BELOW, LEAVES, NODES, OWN, SHARED, forest, forest_reward
from trainer_cases import largest_gap, length_reward, norm, run, script, text_trainer
from transformers import TrainerCallback

from trainer.methods import METHODS

CLIP = 0.2
ROWS = [forest().path(leaf) for leaf in LEAVES]


def written_out(new, old, values, weights, loss_type: str, level: str) -> torch.Tensor:
    """The clipped objective of token advantages `values[node]` and token weights `weights[node]`."""
    losses, masses = [], []
    for path, now, before in zip(ROWS, new, old, strict=True):
        owners = [node for node in path for _ in NODES[node][2]]
        advantage = torch.tensor([values[node] for node in owners])
        weight = torch.tensor([weights[node] for node in owners])
        ratio = (now - before).exp()
        if level == "sequence":  # the value of the row's ratio, the gradient of the token's
            ratio = (now - before).mean().exp().detach() * (now - now.detach()).exp()
        losses.append(weight * -torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage))
        masses.append(weight.sum())
    if loss_type == "grpo":
        return torch.stack([row.sum() / mass for row, mass in zip(losses, masses, strict=True)]).mean()
    return torch.cat(losses).sum() / sum(masses)


class Independent(TrainerCallback):
    """Computes the loss and its gradients again before each update."""

    def __init__(self, trainer, *how):
        self.trainer, self.how, self.old = trainer, how, None
        self.losses, self.gradients, self.ratios = [], [], []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        model, prompt = self.trainer.model, self.trainer.generation.rollout.prompts[0].ids
        new = []
        for leaf in LEAVES:
            ids = forest().tokens(leaf)
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
            new.append(logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0])
        self.old = self.old or [row.detach() for row in new]
        loss = written_out(new, self.old, *self.how)
        named = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
        found = torch.autograd.grad(loss, [p for _, p in named])
        self.losses.append(loss.item())
        self.gradients.append({name: gradient for (name, _), gradient in zip(named, found, strict=True)})
        self.ratios.append([(n - o).detach().mean().exp().item() for n, o in zip(new, self.old, strict=True)])


def trainer_of(tiny_text, folder, monkeypatch, reward=forest_reward, **changes):
    script(monkeypatch, lambda prompt_id, policy: forest(prompt_id))
    plain = {"method": "tree_adv", "num_generations": 5, "max_completion_length": 16}
    if "method" not in changes or changes["method"] == "tree_adv":
        plain["num_trees"] = 2
    return text_trainer(tiny_text, folder, rows=1, reward=reward, perturb=0.01, **(plain | changes))


def weights_of(shared: str) -> dict[int, float]:
    return {i: 1 / len(BELOW.get(i, [i])) if shared == "once" else 1.0 for i in range(len(NODES))}


def compare(trainer, *how):
    expected = Independent(trainer, *how)
    trainer.add_callback(expected)
    seen = run(trainer)
    assert seen.losses == pytest.approx(expected.losses, abs=2e-5)
    for got, wanted in zip(seen.gradients, expected.gradients, strict=True):
        assert norm(wanted) > 0.1
        assert largest_gap(got, wanted) < 2e-5 * norm(wanted)
    return expected


CASES = [*itertools.product(("mean",), ("grpo", "dapo"), ("token", "sequence"), ("per_leaf", "once"))]
CASES += [("sum", "dapo", "token", "once"), ("sqrt", "grpo", "sequence", "per_leaf")]


@pytest.mark.parametrize(("aggregation", "loss_type", "level", "shared"), CASES)
def test_two_updates_worked_out_by_hand(tiny_text, tmp_path, monkeypatch, aggregation, loss_type, level, shared):
    """In the second the ratios are not 1, and something is clipped."""
    trainer = trainer_of(
        tiny_text,
        tmp_path,
        monkeypatch,
        aggregation=aggregation,
        loss_type=loss_type,
        importance_sampling_level=level,
        shared_token_weight=shared,
        num_iterations=2,
        max_steps=2,
        learning_rate=0.03,
    )
    expected = compare(trainer, OWN | SHARED[aggregation], weights_of(shared), loss_type, level)
    assert max(expected.ratios[1]) > 1 + CLIP


@pytest.mark.parametrize("shared", [None, "per_leaf"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_parent_differences_worked_out_by_hand(tiny_text, tmp_path, monkeypatch, level, shared):
    """Values: node 3 1/2, node 0 3/4, node 1 0, the prompt 3/8. A segment counts once unless told otherwise."""
    values = [0.375, -0.375, 0.25, -0.25, 0.5, -0.5, 0.0, 0.0]
    trainer = trainer_of(
        tiny_text, tmp_path, monkeypatch, method="parent_difference", importance_sampling_level=level,
        shared_token_weight=shared, num_iterations=2, max_steps=2, learning_rate=0.1,
    )  # fmt: skip
    compare(trainer, values, weights_of(shared or "once"), "grpo", level)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_advantages_of_a_row_that_cancel_still_teach(tiny_text, tmp_path, monkeypatch, level):
    """TRL's sequence level would average +1, +1, +1, -1, -1, -1 to a gradient of exactly 0."""
    values = [1.0 if i in BELOW else -1.0 for i in range(len(NODES))]
    cancelling = dataclasses.replace(METHODS["tree_adv"], node_values=lambda tree, advantages, rewards, args: values)
    monkeypatch.setitem(METHODS, "tree_adv", cancelling)
    trainer = trainer_of(tiny_text, tmp_path, monkeypatch, importance_sampling_level=level, loss_type="grpo")
    compare(trainer, values, weights_of("per_leaf"), "grpo", level)


@pytest.mark.parametrize("loss_type", ["dapo", "dr_grpo"])
@pytest.mark.parametrize("shared", ["per_leaf", "once"])
def test_the_mean_is_grpo_on_the_same_leaves(tiny_text, tmp_path, monkeypatch, loss_type, shared):
    """Token by token: the n rows of a shared token carry n times the mean, or each its own; once divides both by n."""

    def gradients(method):
        trainer = trainer_of(tiny_text, tmp_path / method, monkeypatch, method=method, loss_type=loss_type)
        trainer.args.shared_token_weight = shared  # the arguments refuse it for the chains of grpo
        return run(trainer).gradients[0]

    left, right = gradients("tree_adv"), gradients("grpo")
    assert largest_gap(left, right) < 1e-5 * norm(left)


def test_with_rows_normalised_by_their_length_it_is_not(tiny_text, tmp_path, monkeypatch):
    def gradients(method):
        return run(trainer_of(tiny_text, tmp_path / method, monkeypatch, method=method, loss_type="grpo")).gradients[0]

    left, right = gradients("tree_adv"), gradients("grpo")
    assert largest_gap(left, right) > 1e-3 * norm(left)


def test_a_leaf_that_abstains_has_no_part_in_the_segments_above(tiny_text, tmp_path, monkeypatch):
    def reward(completion_ids, **kwargs):
        return [None if value == 0.0 and ids[-1] == 353 else value for ids, value in
                zip(completion_ids, forest_reward(completion_ids), strict=True)]  # fmt: skip

    trainer = trainer_of(tiny_text, tmp_path, monkeypatch, reward=reward)
    batches = []
    original = trainer._micro_batches
    trainer._micro_batches = lambda output: batches.append(output) or original(output)
    run(trainer)
    own = (np.array([1, 1, 0, 0]) - 0.5) / (3**-0.5 + 1e-4)  # leaf 5 abstains
    rows = batches[0]["advantages"]
    assert rows[1].tolist()[:6] == pytest.approx([own[0]] * 6, abs=1e-5)
    assert rows[2].tolist()[:8] == pytest.approx([own[0]] * 5 + [0.0] * 3, abs=1e-5)


def test_once_counts_the_rows_that_are_trained_on(tiny_text, tmp_path, monkeypatch):
    """Of the two rows that share a segment one was cut off and is masked: the other counts the segment in full."""
    ended = {2, 4, 6}

    def cut(prompt_id):
        tree = forest(prompt_id)
        for leaf in ended:
            tree.nodes[leaf].token_ids[-1] = end
        return tree

    changes = {"mask_truncated_completions": True, "shared_token_weight": "once", "loss_type": "dapo"}
    trainer = trainer_of(tiny_text, tmp_path, monkeypatch, reward=length_reward, **changes)
    end = trainer.eos_token_ids[0]
    script(monkeypatch, lambda prompt_id, policy: cut(prompt_id))
    batches = []
    original = trainer._micro_batches
    trainer._micro_batches = lambda output: batches.append(original(output)) or batches[0]
    trainer.train()
    (batch,) = batches[0]
    weight = batch["completion_mask"] * batch["tool_mask"]
    assert weight[0].tolist()[:5] == [0.5] * 3 + [1.0] * 2  # of segment 0 the rows of leaves 2 and 4 count, not of 5
    assert weight[1].tolist()[:6] == [0.5] * 3 + [1.0] * 3
    assert weight[3].tolist()[:6] == [1.0] * 6
    assert weight[2].sum() == weight[4].sum() == 0
    assert batch["num_items_in_batch"] == sum(len(NODES[i][2]) for i in (*BELOW, *ended))
