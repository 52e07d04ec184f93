"""Advantages handed up a forest, by hand; what the mean has to do with plain GRPO."""

import math
import random

import numpy as np
import pytest
from forest_cases import LEAVES, NODES, OWN, RIGHT, SHARED, WRONG, forest

from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.redistribute import AGGREGATIONS, redistribute
from trainer.rollout import Rollout
from trainer.tree import PROMPT, Node, Tree


def advantages():
    rewards = [NODES[leaf][3] for leaf in LEAVES]
    return dict(zip(LEAVES, leaf_group(rewards, [0] * len(rewards)), strict=True))


def random_forest(seed: int) -> Tree:
    draw = random.Random(seed)
    tree = Tree("p")
    for i in range(draw.randint(2, 14)):
        parent = draw.choice([PROMPT, *range(i)])
        tree.add(Node(parent, "segment", [draw.randrange(90) for _ in range(draw.randint(1, 5))]))
    return tree


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_forest_worked_out_by_hand(aggregation):
    values = redistribute(forest(), advantages(), aggregation)
    wanted = OWN | SHARED[aggregation]
    assert values == pytest.approx([wanted[i] for i in range(len(NODES))])
    assert (round(RIGHT, 3), round(WRONG, 3)) == (1.095, -0.73)
    assert [round(SHARED[name][0], 3) for name in AGGREGATIONS] == [0.487, 1.46, 0.843]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_root_of_a_forest_of_one_tree_gets_nothing(aggregation):
    tree = Tree("p", [Node(PROMPT, "segment", [1]), *(Node(0, "segment", [2 + i]) for i in range(4))])
    values = redistribute(tree, dict(enumerate(leaf_group([1, 0, 0.5, 0], [0] * 4), start=1)), aggregation)
    assert values[0] == pytest.approx(0, abs=1e-12)


def test_leaves_that_abstain_have_no_part():
    rewards = {2: 1.0, 4: math.nan, 5: 0.0, 6: 0.0}  # 7 is missing
    values = redistribute(forest(), rewards)
    assert values == pytest.approx([0.5, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert redistribute(forest(), {5: -2.0}, "sum") == [-2.0, 0.0, 0.0, -2.0, 0.0, -2.0, 0.0, 0.0]
    assert redistribute(forest(), {}) == [0.0] * len(NODES)


def test_per_leaf_and_once_by_hand():
    """What a token adds to the gradient in all: its advantage, times the rows through it, times the weight in each."""
    rollout = Rollout([None], [forest()], [0] * 5, LEAVES)
    values = redistribute(forest(), advantages())
    per_leaf, once = np.zeros(len(NODES)), np.zeros(len(NODES))
    for row in range(len(LEAVES)):
        for node, share in zip(rollout.per_token(row, id), rollout.shares([True] * 5)[row], strict=True):
            i = next(i for i, other in enumerate(rollout.trees[0].nodes) if id(other) == node)
            per_leaf[i] += values[i] / len(NODES[i][2])
            once[i] += share * values[i] / len(NODES[i][2])
    mean = OWN | SHARED["mean"]
    assert once.tolist() == pytest.approx([mean[i] for i in range(len(NODES))])
    assert per_leaf.tolist() == pytest.approx([(OWN | SHARED["sum"])[i] for i in range(len(NODES))])


@pytest.mark.parametrize("seed", range(20))
def test_the_mean_counted_once_is_grpo_with_shared_gradients_divided_by_their_leaves(seed):
    tree = random_forest(seed)
    leaves = tree.leaves()
    own = dict(
        zip(leaves, leaf_group(np.random.default_rng(seed).normal(size=len(leaves)), [0] * len(leaves)), strict=True)
    )
    below = [[own[leaf] for leaf in leaves if node in tree.path(leaf)] for node in range(len(tree.nodes))]
    assert redistribute(tree, own) == pytest.approx([sum(values) / len(values) for values in below])
    assert redistribute(tree, own, "sum") == pytest.approx([sum(values) for values in below])
