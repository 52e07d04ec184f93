"""Values of turns: AT2PO's recursion on a tree by hand, its baselines, what leaves the advantages as they are."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.turn_value import BASELINES, turn_value
from trainer.tree import PROMPT, Node, Tree

NAN = math.nan
seeds = st.integers(0, 10_000)


def add_turn(tree: Tree, parent: int, *logprobs: float) -> int:
    return tree.add(Node(parent, "step", [1] * len(logprobs), logprobs=list(logprobs)))


def see(tree: Tree, turn: int) -> int:
    return tree.add(Node(turn, "observation", [9, 9, 9], sampled=False))


def hand_tree() -> Tree:
    """A -> (B -> (C, D), E) and a chain F, with mean surprisals B: ln 3, E: 0, C: ln 2, D: 0, A: 0, F: ln 4.

    Nodes: 0 A, 1 its observation, 2 B, 3 its observation, 4 C, 5 D, 6 E, 7 F.
    """
    tree = Tree("p")
    a = add_turn(tree, PROMPT, 0.0)
    b = add_turn(tree, see(tree, a), -math.log(9), 0.0)  # the mean of ln 9 and 0 is ln 3
    seen = see(tree, b)
    add_turn(tree, seen, -math.log(2))
    add_turn(tree, seen, 0.0, 0.0)
    add_turn(tree, 1, 0.0)
    add_turn(tree, PROMPT, -math.log(4))
    return tree


REWARDS = {4: 1.0, 5: 0.0, 6: 0.0, 7: 0.5}
# softmax(ln 2, 0) = 2/3, 1/3:   V(B) = 2/3 * 1 + 1/3 * 0 = 2/3
# softmax(ln 3, 0) = 3/4, 1/4:   V(A) = 3/4 * 2/3 + 1/4 * 0 = 1/2
# softmax(0, ln 4) = 1/5, 4/5:   V(prompt) = 1/5 * 1/2 + 4/5 * 1/2 = 1/2
V_A, V_B, V_PROMPT = 1 / 2, 2 / 3, 1 / 2


class TestByHand:
    def test_the_value_of_a_turn_is_its_advantage(self):
        wanted = [V_A, V_A, V_B, V_B, 1, 0, 0, 0.5]
        assert turn_value(hand_tree(), REWARDS) == pytest.approx(wanted)

    def test_minus_the_value_of_the_turn_before(self):
        a, b = V_A - V_PROMPT, V_B - V_A
        wanted = [a, a, b, b, 1 - V_B, 0 - V_B, 0 - V_A, 0.5 - V_PROMPT]
        assert turn_value(hand_tree(), REWARDS, "parent") == pytest.approx(wanted)

    def test_minus_the_value_of_the_prompt(self):
        wanted = [value - V_PROMPT for value in (V_A, V_A, V_B, V_B, 1, 0, 0, 0.5)]
        assert turn_value(hand_tree(), REWARDS, "prompt") == pytest.approx(wanted)

    def test_a_leaf_without_a_reward_enters_no_mean(self):
        """Without C, B is worth what D is; without both, A is worth what E is."""
        assert turn_value(hand_tree(), REWARDS | {4: NAN}) == pytest.approx([0, 0, 0, 0, 0, 0, 0, 0.5])
        found = turn_value(hand_tree(), {4: NAN, 5: NAN, 6: 1.0, 7: 0.0})
        assert found == pytest.approx([1, 1, 0, 0, 0, 0, 1, 0])
        for baseline in BASELINES:
            assert turn_value(hand_tree(), dict.fromkeys(REWARDS, NAN), baseline) == [0.0] * 8

    def test_a_chain_that_ended_with_an_observation_has_its_value_too(self):
        tree = Tree("p")
        see(tree, add_turn(tree, PROMPT, -1.0))
        add_turn(tree, PROMPT, -1.0)
        assert turn_value(tree, {1: 1.0, 2: 0.0}) == [1.0, 1.0, 0.0]
        assert turn_value(tree, {1: 1.0, 2: 0.0}, "parent") == [0.5, 0.5, -0.5]

    def test_chains_have_the_advantages_of_grpo(self):
        tree = Tree("p")
        for surprise in (1.0, 2.0, 3.0):
            add_turn(tree, see(tree, add_turn(tree, PROMPT, -surprise)), -1.0)
        leaves, advantages = tree.leaves(), leaf_group([1.0, 0.0, 0.0], [0] * 3)
        found = turn_value(tree, dict(zip(leaves, advantages, strict=True)))
        assert found == [value for value in advantages for _ in range(3)]


def random_case(seed: int) -> tuple[Tree, dict[int, float]]:
    """A tree of up to 14 turns in any shape, and a reward of each leaf; some abstain."""
    draw = random.Random(seed)
    tree, places = Tree("p"), [PROMPT]
    for _ in range(draw.randint(2, 14)):
        turn = add_turn(tree, draw.choice(places), *(-3 * draw.random() for _ in range(draw.randint(1, 3))))
        if draw.random() < 0.6:
            places.append(see(tree, turn))
    return tree, {leaf: draw.choice([0.0, 1.0, 0.5, -2.0, NAN]) for leaf in tree.leaves()}


def value_of(tree: Tree, rewards: dict[int, float], node: int) -> float:
    """The paper's recursion; PROMPT is the root of all."""
    if node in rewards:
        return rewards[node]
    below = [(i, value_of(tree, rewards, i)) for i, child in enumerate(tree.nodes) if child.parent == node]
    known = [(i, value) for i, value in below if not math.isnan(value)]
    if not known:
        return NAN
    weights = [math.exp(-np.mean(tree.nodes[i].logprobs)) if tree.nodes[i].sampled else 1.0 for i, _ in known]
    return sum(w * value for w, (_, value) in zip(weights, known, strict=True)) / sum(weights)


@given(seeds)
def test_the_recursion_of_the_paper(seed):
    tree, rewards = random_case(seed)
    wanted = [value_of(tree, rewards, i) for i in range(len(tree.nodes))]
    assert turn_value(tree, rewards) == pytest.approx(np.nan_to_num(wanted), abs=1e-12)
    if not math.isnan(root := value_of(tree, rewards, PROMPT)):
        found = turn_value(tree, rewards, "prompt")
        assert found == pytest.approx(np.nan_to_num(np.array(wanted) - root), abs=1e-12)


@given(seeds)
def test_weighted_advantages_of_the_turns_at_one_point_sum_to_zero(seed):
    tree, rewards = random_case(seed)
    found = turn_value(tree, rewards, "parent")
    for parent in {node.parent for node in tree.nodes}:
        turns = [i for i, node in enumerate(tree.nodes) if node.parent == parent and node.kind == "step"]
        turns = [i for i in turns if not math.isnan(value_of(tree, rewards, i))]
        weights = [math.exp(-np.mean(tree.nodes[i].logprobs)) for i in turns]
        assert sum(w * found[i] for w, i in zip(weights, turns, strict=True)) == pytest.approx(0, abs=1e-9)


@given(seeds)
def test_advantages_of_the_leaves_sum_to_zero(seed):
    """The leaves' values are their advantages in the prompt's group; a value between them is a mean of some."""
    tree, rewards = random_case(seed)
    leaves, own = list(rewards), np.array(list(rewards.values()))
    values = leaf_group(own, [0] * len(own), "none")
    given_values = dict(zip(leaves, np.where(np.isnan(own), NAN, values), strict=True))
    found = turn_value(tree, given_values)
    assert sum(found[leaf] for leaf in leaves) == pytest.approx(0, abs=1e-9)
    known = [value for value in given_values.values() if not math.isnan(value)] or [0.0]
    assert min(*known, 0) - 1e-9 <= min(found) and max(found) <= max(*known, 0) + 1e-9


@pytest.mark.parametrize("baseline", BASELINES)
@given(seed=seeds, shift=st.floats(-10, 10), factor=st.floats(0.1, 20))
def test_a_shift_of_the_rewards_cancels_and_a_factor_scales_the_advantages(baseline, seed, shift, factor):
    tree, rewards = random_case(seed)
    leaves, own = list(rewards), np.array(list(rewards.values()))

    def credited(of_leaves, scale):
        values = np.where(np.isnan(own), NAN, leaf_group(of_leaves, [0] * len(own), scale))
        return turn_value(tree, dict(zip(leaves, values, strict=True)), baseline)

    wanted = [factor * value for value in credited(own, "none")]
    assert credited(factor * own + shift, "none") == pytest.approx(wanted, abs=1e-6)
    if np.nanstd(own) > 0.1:  # an epsilon beside the standard deviation
        assert credited(factor * own + shift, "group") == pytest.approx(credited(own, "group"), abs=1e-2)
