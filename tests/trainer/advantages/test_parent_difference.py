"""Values of segments minus those of their parents: a forest by hand, sums on paths, what leaves them as they are."""

import math
import random

import numpy as np
import pytest
from forest_cases import LEAVES, NODES, forest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.parent_difference import parent_difference
from trainer.tree import PROMPT, Node, Tree

NAN = math.nan
REWARDS = {leaf: NODES[leaf][3] for leaf in LEAVES}  # 2: 1, 4: 1, 5: 0, 6: 0, 7: 0
seeds = st.integers(0, 10_000)


def random_case(seed: int) -> tuple[Tree, dict[int, float]]:
    """A forest of up to 14 segments in any shape, and a reward of each leaf; some abstain."""
    draw = random.Random(seed)
    tree = Tree("p")
    for i in range(draw.randint(2, 14)):
        tree.add(Node(draw.choice([PROMPT, *range(i)]), "segment", [i]))
    return tree, {leaf: draw.choice([0.0, 1.0, 0.5, -2.0, NAN]) for leaf in tree.leaves()}


def value_of(tree: Tree, rewards: dict[int, float], node: int) -> float:
    """The paper's recursion; PROMPT is the root of all."""
    if node in rewards:
        return rewards[node]
    below = [value_of(tree, rewards, i) for i, child in enumerate(tree.nodes) if child.parent == node]
    known = [value for value in below if not math.isnan(value)]
    return sum(known) / len(known) if known else NAN


def test_the_forest_by_hand():
    """Node 3 has leaves 4 and 5, worth 1 and 0; node 0 has leaf 2 and node 3; node 1 has leaves 6 and 7, worth 0."""
    values = {3: 0.5, 0: 0.75, 1: 0.0, PROMPT: 0.375}
    wanted = [
        values[0] - values[PROMPT],
        values[1] - values[PROMPT],
        1 - values[0],
        values[3] - values[0],
        1 - values[3],
        0 - values[3],
        0 - values[1],
        0 - values[1],
    ]
    assert parent_difference(forest(), REWARDS) == pytest.approx(wanted, abs=1e-12)
    assert wanted == [0.375, -0.375, 0.25, -0.25, 0.5, -0.5, 0.0, 0.0]


def test_a_node_is_worth_the_mean_of_its_children_not_of_its_leaves():
    """Leaves 1 | 0, 0, 0 below two children of one node: the children are worth 1 and 0, the node 0.5, not 0.25."""
    tree = Tree("p", [Node(PROMPT, "segment", [1]), Node(PROMPT, "segment", [2]), Node(0, "segment", [3])])
    tree.add(Node(0, "segment", [4]))
    for token in (5, 6, 7):
        tree.add(Node(3, "segment", [token]))
    found = parent_difference(tree, {1: 0.5, 2: 1.0, 4: 0.0, 5: 0.0, 6: 0.0})
    assert found == [0.0, 0.0, 0.5, -0.5, 0.0, 0.0, 0.0]


def test_leaves_that_abstain_enter_no_mean():
    """Without leaf 4 node 3 is worth 0; without 6 and 7 node 1 is worth nothing, and the prompt what node 0 is."""
    found = parent_difference(forest(), {2: 1.0, 4: NAN, 5: 0.0, 6: NAN})
    assert found == [0.0, 0.0, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0]
    assert parent_difference(forest(), {}) == [0.0] * len(NODES)


def test_chains_are_compared_with_the_mean_of_the_prompt():
    tree = Tree("p", [Node(PROMPT, "segment", [i]) for i in range(4)])
    found = parent_difference(tree, dict(enumerate([1.0, 0.0, 0.0, 0.0])))
    assert found == leaf_group([1, 0, 0, 0], [0] * 4, "none").tolist() == [0.75, -0.25, -0.25, -0.25]


@given(seeds)
def test_the_recursion_of_the_paper(seed):
    tree, rewards = random_case(seed)
    wanted = [value_of(tree, rewards, i) - value_of(tree, rewards, node.parent) for i, node in enumerate(tree.nodes)]
    assert parent_difference(tree, rewards) == pytest.approx(np.nan_to_num(wanted), abs=1e-12)


@given(seeds)
def test_siblings_sum_to_nothing_and_paths_to_the_reward_minus_the_prompts_value(seed):
    tree, rewards = random_case(seed)
    found = parent_difference(tree, rewards)
    for parent in {node.parent for node in tree.nodes}:
        assert sum(a for a, node in zip(found, tree.nodes, strict=True) if node.parent == parent) == pytest.approx(0)
    for leaf, reward in rewards.items():
        if not math.isnan(reward):
            total = sum(found[i] for i in tree.path(leaf))
            assert total == pytest.approx(reward - value_of(tree, rewards, PROMPT), abs=1e-12)


@given(seeds, st.floats(-10, 10), st.floats(0.1, 20))
def test_a_shift_of_the_rewards_cancels_and_a_factor_is_the_advantages(seed, shift, factor):
    tree, rewards = random_case(seed)
    moved = {leaf: factor * reward + shift for leaf, reward in rewards.items()}
    wanted = [factor * advantage for advantage in parent_difference(tree, rewards)]
    assert parent_difference(tree, moved) == pytest.approx(wanted, abs=1e-9)
