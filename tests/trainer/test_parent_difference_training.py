"""parent_difference end to end on the small text model: the shape of its trees, their advantages, what is refused."""

import pytest
import torch
from trainer_cases import largest_gap, logged, norm, run, text_trainer

from trainer.tree import PROMPT

SETTINGS = {
    "method": "parent_difference",
    "first_segments": 2,
    "segment_branches": 3,
    "segment_length": 2,
    "num_generations": 18,
    "max_completion_length": 12,
    "temperature": 5.0,  # so hot that no chain ends before its last segment
}


def tokens_of(tree, node) -> int:
    return len(tree.nodes[node].token_ids)


def test_trees_of_two_by_three_by_three_segments(tiny_text, tmp_path):
    trainer = text_trainer(tiny_text, tmp_path, rows=2, **SETTINGS)
    run(trainer)
    for tree in trainer.generation.rollout.trees:
        below = {i: [j for j, child in enumerate(tree.nodes) if child.parent == i] for i in range(-1, len(tree.nodes))}
        assert len(below[PROMPT]) == 2
        for first in below[PROMPT]:
            assert (tokens_of(tree, first), len(below[first])) == (2, 3)
            for second in below[first]:
                assert (tokens_of(tree, second), len(below[second])) == (2, 3)
                assert all(below[leaf] == [] for leaf in below[second])
    assert logged(trainer, "fork/count") == [8]
    assert logged(trainer, "fork/filled") == [0]


def test_tokens_carry_their_segments_advantage_and_siblings_sum_to_nothing(tiny_text, tmp_path):
    trainer = text_trainer(tiny_text, tmp_path, rows=1, **SETTINGS)
    outputs = []
    original = trainer._micro_batches
    trainer._micro_batches = lambda output: outputs.append(output) or original(output)
    run(trainer)
    rollout, rewards = trainer.generation.rollout, trainer._all_rows().rewards
    (tree,) = rollout.trees
    found = {}
    for row, leaf in enumerate(rollout.row_leaf):
        values, at = outputs[0]["advantages"][row].tolist(), 0
        for node in tree.path(leaf):
            own = values[at : at + tokens_of(tree, node)]
            at += len(own)
            assert len(set(own)) == 1 and found.setdefault(node, own[0]) == own[0]
    assert len(found) == len(tree.nodes)
    assert max(map(abs, found.values())) > 0.1
    for parent in {node.parent for node in tree.nodes}:
        assert sum(found[i] for i, node in enumerate(tree.nodes) if node.parent == parent) == pytest.approx(0, abs=1e-6)
    for row, leaf in enumerate(rollout.row_leaf):  # a balanced tree: its value is the mean reward
        assert sum(found[i] for i in tree.path(leaf)) == pytest.approx(rewards[row] - rewards.mean(), abs=1e-5)


def test_scales_divide_all_advantages_of_a_prompt_by_one_number(tiny_text, tmp_path):
    """Two prompts of 18 leaves."""
    found = {}
    for name in ("none", "group", "batch"):
        changes = {"scale_rewards": name, "per_device_train_batch_size": 36}
        trainer = text_trainer(tiny_text, tmp_path / name, rows=2, **SETTINGS | changes)
        outputs = []
        original = trainer._micro_batches
        trainer._micro_batches = lambda output, outputs=outputs, call=original: outputs.append(output) or call(output)
        run(trainer)
        found[name] = outputs[0]["advantages"]
        rewards = torch.tensor(trainer._all_rows().rewards, dtype=torch.float32)
    divisor = rewards.view(2, 18).std(dim=1).repeat_interleave(18)[:, None] + 1e-4
    assert (found["group"] * divisor - found["none"]).abs().max() < 1e-5
    assert (found["batch"] * (rewards.std() + 1e-4) - found["none"]).abs().max() < 1e-5
    assert (found["batch"] - found["group"]).abs().max() > 1e-3


def test_packed_and_dense_gradients_agree(tiny_text, tmp_path):
    def gradients(sharing):
        changes = {"prefix_sharing": sharing, "num_iterations": 2, "max_steps": 2}
        return run(text_trainer(tiny_text, tmp_path / sharing, rows=2, **SETTINGS | changes)).gradients

    for packed, dense in zip(gradients("on"), gradients("off"), strict=True):
        assert norm(dense) > 0
        assert largest_gap(packed, dense) < 1e-5 * norm(dense)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_generations": 1, "first_segments": 1}, "num_generations=1: an advantage compares at least 2 leaves"),
        ({"first_segments": 19}, "first_segments=19 do not fit into num_generations=18 leaves per prompt: lower"),
        ({"segment_branches": 1}, "segment_branches=1 must be at least 2"),
        ({"segment_length": 0}, "segment_length=0 must be at least 1"),
        ({"sync_prompt_across_ranks": True}, "one process must hold; set it to false"),
    ],
)
def test_settings_that_cannot_work_end_in_a_sentence(tiny_text, tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        text_trainer(tiny_text, tmp_path, **SETTINGS | changes)
