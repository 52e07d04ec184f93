"""Trees go together so that micro-batches cost alike; every pass runs over the same partition, and no row notices."""

import pytest
import torch
from packing_cases import assert_same_gradients, gradients, mixed_case, tiny_vlm
from trainer_cases import run, script, text_trainer, thought_tree

from trainer.logprobs.forward import RowForward
from trainer.logprobs.micro_batches import balanced, partition
from trainer.logprobs.packing import build_plans, packed_forward
from trainer.rollout import Rollout

# Tokens of eight trees, dear ones next to each other.
SIZES = [90, 80, 70, 60, 10, 9, 8, 7]


def rollout_of(sizes: list[int]) -> Rollout:
    """Trees of two thoughts and two answers, with that many tokens each, on prompts of one token."""

    class Prompt:
        ids = [1]

    trees = [thought_tree("a", [[5] * (size - 5), [6]], [[[7], [7]], [[8], [9]]]) for size in sizes]
    return Rollout.from_trees([Prompt() for _ in sizes], trees, leaves=4)


def test_groups_are_of_equal_count_and_nearly_equal_sums():
    groups = balanced(SIZES, groups=4)
    assert [len(group) for group in groups] == [2] * 4
    assert sorted(tree for group in groups for tree in group) == list(range(8))
    sums = [sum(SIZES[tree] for tree in group) for group in groups]
    assert max(sums) - min(sums) <= 30 - 3  # 90 + 7 against 60 + 10; in the order grown it is 170 against 15


def test_one_tree_a_micro_batch_keeps_the_order_grown():
    assert balanced(SIZES[::-1], groups=8) == [[tree] for tree in range(8)]


def test_rows_of_a_tree_stay_together_and_each_row_comes_once():
    rows = partition(rollout_of(SIZES), steps=4, accumulation=4)
    assert [len(batch) for batch in rows] == [8] * 4
    assert sorted(row for batch in rows for row in batch) == list(range(32))
    for batch in rows:
        for first in (batch[:4], batch[4:]):
            assert first == list(range(first[0], first[0] + 4))
            assert first[0] % 4 == 0


def test_no_tree_leaves_its_optimiser_step():
    rows = partition(rollout_of(SIZES), steps=4, accumulation=2)
    assert sorted(rows[0] + rows[1]) == list(range(16))
    assert sorted(rows[2] + rows[3]) == list(range(16, 32))
    assert rows[:2] == [[*range(4), *range(12, 16)], list(range(4, 12))]


def test_trees_that_do_not_share_out_are_our_own_fault():
    with pytest.raises(AssertionError, match="3 trees in 2 micro-batches"):
        balanced([1, 2, 3], groups=2)


def shrinking_tree(prompt_id: str, policy):
    """Random tokens, fewer with every prompt."""
    n = int(prompt_id.removeprefix("row-"))
    generator = torch.Generator().manual_seed(n)
    tokens = [torch.randint(300, 600, (8 - 2 * n,), generator=generator).tolist() for _ in range(6)]
    return thought_tree(prompt_id, tokens[:2], [tokens[2:4], tokens[4:]])


@pytest.mark.parametrize("sharing", ["on", "off"])
def test_the_pass_over_a_whole_generation_gives_each_row_its_own_values(tiny_text, tmp_path, monkeypatch, sharing):
    """Old log-probs come from the whole generation, the policy's from each micro-batch: at first they are equal."""
    script(monkeypatch, shrinking_tree)
    changes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_iterations": 2}
    trainer = text_trainer(tiny_text, tmp_path, rows=4, prefix_sharing=sharing, **changes)
    plans, seen = [], []
    original = trainer._compute_loss

    def compute_loss(model, inputs):
        plans.append(dict(trainer.forward._plans))
        rows = inputs["row_ids"].tolist()
        dense, _ = trainer.forward.dense(
            model,
            rows,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].size(1),
        )
        seen.append((inputs["old_per_token_logps"], dense.detach(), inputs["completion_mask"]))
        return original(model, inputs)

    trainer._compute_loss = compute_loss
    run(trainer)
    assert trainer.generation.partition == [[*range(4), *range(12, 16)], list(range(4, 12))]
    assert len(seen) == 2
    for old, dense, mask in seen:
        assert ((old - dense) * mask).abs().max() < 1e-5
        assert old.abs().max() > 1
    if sharing == "on":
        assert set(plans[0]) == {tuple(rows) for rows in trainer.generation.partition}
        assert all(plans[1][rows] is plans[0][rows] for rows in plans[0]), "old and policy pass share their plans"


def test_a_process_with_fewer_cuts_makes_up_for_them_without_changing_anything():
    """Two more forward passes than it needs: values and gradients are those without them."""
    module, model = tiny_vlm()
    prompts, row_prompt, completions = mixed_case()
    rollout = Rollout(prompts, [], row_prompt, [])
    rollout.completion, rollout.observations = lambda row: completions[row], lambda row: []
    longest = max(len(prompts[p].ids) + len(row) for p, row in zip(row_prompt, completions, strict=True))
    forward = RowForward(module, model, "on", max_slots=longest, largest=lambda count: count + 2)
    forward.start(rollout)
    rows, width = list(range(len(completions))), max(map(len, completions))
    got = forward(model, model, rows, torch.empty(0), None, width)
    plans = build_plans(prompts, row_prompt, completions, longest, width)
    assert len(forward._plans[tuple(rows)]) == len(plans) + 2 > 3
    wanted = packed_forward(model, module, plans)
    assert torch.equal(got[0], wanted[0])
    wanted_gradients = gradients(model, *wanted)
    assert_same_gradients(gradients(model, *got), wanted_gradients)
