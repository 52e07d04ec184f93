"""Tree-GRPO's advantages: a forest computed by hand, the sums over a tree, and what has no spread."""

import math

import numpy as np
import pytest

from trainer.advantages.groups import EPSILON
from trainer.advantages.intra_inter import intra_inter
from trainer.advantages.leaf_group import leaf_group

# Two trees of three leaves: means 1/3 and 2/3 in the trees, 1/2 in all; sample variances 1/3, 1/3 and 3/10.
REWARDS, PROMPTS, TREES = [1, 0, 0, 1, 1, 0], [0] * 6, [0, 0, 0, 1, 1, 1]
TREE, PROMPT = math.sqrt(1 / 3) + EPSILON, math.sqrt(3 / 10) + EPSILON


def test_two_trees_of_three_leaves_by_hand():
    inter = [x / PROMPT for x in (0.5, -0.5, -0.5, 0.5, 0.5, -0.5)]
    intra = [x / TREE for x in (2 / 3, -1 / 3, -1 / 3, 1 / 3, 1 / 3, -2 / 3)]
    for name, wanted in (
        ("inter", inter),
        ("intra", intra),
        ("intra_inter", [a + b for a, b in zip(inter, intra, strict=True)]),
    ):
        assert intra_inter(REWARDS, PROMPTS, TREES, name).tolist() == pytest.approx(wanted, abs=1e-12)


def test_the_intra_part_sums_to_zero_over_each_tree():
    rng = np.random.default_rng(0)
    rewards, trees = rng.normal(size=60), rng.integers(0, 7, 60)
    intra = intra_inter(rewards, trees // 2, trees, "intra")
    assert np.abs(intra).max() > 0.5
    for tree in range(7):
        assert intra[trees == tree].sum() == pytest.approx(0, abs=1e-9)


def test_a_tree_of_one_leaf_has_the_inter_part_alone():
    rewards, prompts, trees = [1, 0, 0.5], [0, 0, 0], [0, 1, 2]
    assert intra_inter(rewards, prompts, trees, "intra").tolist() == [0, 0, 0]
    assert intra_inter(rewards, prompts, trees).tolist() == leaf_group(rewards, prompts).tolist()


def test_equal_rewards_teach_nothing():
    assert intra_inter([0.3] * 6, PROMPTS, TREES).tolist() == [0] * 6
    # One tree without spread: its leaves are compared with the other tree's only.
    values = intra_inter([1, 1, 1, 0, 1, 0], PROMPTS, TREES)
    inter = intra_inter([1, 1, 1, 0, 1, 0], PROMPTS, TREES, "inter")
    assert values[:3].tolist() == inter[:3].tolist() and values[3] < inter[3]


def test_a_leaf_that_abstains_gets_nothing_and_enters_no_mean():
    values = intra_inter([*REWARDS, math.nan], [*PROMPTS, 0], [*TREES, 1])
    assert values[-1] == 0
    assert values[:-1].tolist() == intra_inter(REWARDS, PROMPTS, TREES).tolist()


def test_the_order_of_rows_does_not_matter():
    order = [4, 0, 5, 2, 1, 3]
    shuffled = intra_inter([REWARDS[i] for i in order], [0] * 6, [TREES[i] for i in order])
    assert shuffled.tolist() == intra_inter(REWARDS, PROMPTS, TREES)[order].tolist()
