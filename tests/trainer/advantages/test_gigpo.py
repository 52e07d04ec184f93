"""GiGPO's advantages: three chains by hand, what counts as the same observation, and what leaves them as they are."""

import math
import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages.gigpo import gigpo
from trainer.advantages.groups import EPSILON
from trainer.advantages.leaf_group import leaf_group
from trainer.tree import PROMPT, Node, Tree

NAN = math.nan
X, Y, Z = [101, 102], [103], [104]
seeds = st.integers(0, 10_000)


def chains(*observations, media=()) -> tuple[Tree, list[list[int]], list[int]]:
    """One chain per argument, a list of what its calls returned: the tree, the steps of each chain, the leaves."""
    tree, steps, pictures = Tree("p"), [], iter(media)
    for seen in observations:
        own = [tree.add(Node(PROMPT, "step", [1]))]
        for ids in seen:
            picture = next(pictures, None)
            above = tree.add(Node(own[-1], "observation", ids, sampled=False, group=len(steps), media=picture))
            own.append(tree.add(Node(above, "step", [1, 2])))
        steps.append(own)
    return tree, steps, [own[-1] for own in steps]


def credited(tree, leaves, rewards, *settings, scale="none") -> list[float]:
    episode = leaf_group(rewards, [0] * len(rewards), scale)
    known = [NAN if math.isnan(reward) else float(value) for reward, value in zip(rewards, episode, strict=True)]
    return gigpo(tree, dict(zip(leaves, known, strict=True)), dict(zip(leaves, rewards, strict=True)), *settings, scale)


def random_case(seed: int):
    draw = random.Random(seed)
    case = chains(*([draw.choice([X, Y, Z]) for _ in range(draw.randint(0, 3))] for _ in range(draw.randint(1, 5))))
    return *case, [draw.choice([0.0, 1.0, 0.5, -2.0, NAN]) for _ in case[1]]


class TestByHand:
    """A sees X, then Y, and is right; B sees X and is wrong; C sees Z and is right. Discounted by 1/2 per step to come.

    First steps: 1/4, 0, 1/2, mean 1/4. Steps that saw X: 1/2 and 0. The last steps of A and C are alone.
    """

    TREE, STEPS, LEAVES = chains([X, Y], [X], [Z])
    REWARDS = [1.0, 0.0, 1.0]

    def steps(self, values):
        return [[values[node] for node in own] for own in self.STEPS]

    def test_without_a_std(self):
        found = self.steps(credited(self.TREE, self.LEAVES, self.REWARDS, 2.0, 0.5))
        right, wrong = 1 / 3, -2 / 3
        assert found[0] == pytest.approx([right + 0, right + 2 * 0.25, right])
        assert found[1] == pytest.approx([wrong - 2 * 0.25, wrong - 2 * 0.25])
        assert found[2] == pytest.approx([right + 2 * 0.25, right])

    def test_with_the_std_of_what_is_compared(self):
        found = self.steps(credited(self.TREE, self.LEAVES, self.REWARDS, 1.0, 0.5, scale="group"))
        episode = math.sqrt(1 / 3) + EPSILON
        right, wrong = 1 / 3 / episode, -2 / 3 / episode
        first, second = 0.25 / (0.25 + EPSILON), 0.25 / (math.sqrt(1 / 8) + EPSILON)
        assert found[0] == pytest.approx([right, right + second, right])
        assert found[1] == pytest.approx([wrong - first, wrong - second])
        assert found[2] == pytest.approx([right + first, right])

    def test_without_a_discount_a_first_step_is_credited_like_its_episode(self):
        found = self.steps(credited(self.TREE, self.LEAVES, self.REWARDS, 1.0, 1.0))
        assert [own[0] for own in found] == pytest.approx([2 / 3, -4 / 3, 2 / 3])

    def test_without_weight_it_is_grpo(self):
        found = credited(self.TREE, self.LEAVES, self.REWARDS, 0.0, 0.5, scale="group")
        episode = leaf_group(self.REWARDS, [0] * 3)
        for own, value in zip(self.STEPS, episode, strict=True):
            assert {found[node] for node in own} == {value}

    def test_a_chain_that_abstains_is_compared_with_nothing(self):
        found = self.steps(credited(self.TREE, self.LEAVES, [1.0, NAN, 0.0], 1.0, 1.0))
        assert found == [[1.0, 0.5, 0.5], [0.0, 0.0], [-1.0, -0.5]]


def test_pictures_are_a_part_of_an_observation():
    one, other = (SimpleNamespace(media_key=key) for key in ("a", "b"))
    for pictures, compared in (((one, one), True), ((one, other), False), ((one, None), False)):
        tree, steps, leaves = chains([X], [X], media=pictures)
        found = credited(tree, leaves, [1.0, 0.0], 1.0, 1.0)
        assert found[steps[0][1]] == (1.0 if compared else 0.5)


@given(seeds, st.floats(0.1, 1.0))
def test_steps_that_saw_the_same_sum_to_nothing(seed, gamma):
    tree, steps, leaves, rewards = random_case(seed)
    both, episode = (credited(tree, leaves, rewards, weight, gamma) for weight in (1.0, 0.0))
    sums = defaultdict(float)
    for node in (node for own in steps for node in own):
        above = tree.nodes[node].parent
        sums[() if above == PROMPT else tuple(tree.nodes[above].token_ids)] += both[node] - episode[node]
    assert list(sums.values()) == pytest.approx([0.0] * len(sums), abs=1e-9)


@given(seeds, st.floats(-10, 10), st.floats(0.1, 20), st.floats(0.1, 1.0))
def test_a_factor_of_the_rewards_is_the_advantages_and_a_shift_cancels_without_a_discount(seed, shift, factor, gamma):
    tree, _, leaves, rewards = random_case(seed)
    found = credited(tree, leaves, rewards, 1.0, gamma)
    scaled = credited(tree, leaves, [factor * reward for reward in rewards], 1.0, gamma)
    assert scaled == pytest.approx([factor * value for value in found], abs=1e-5)
    undiscounted = credited(tree, leaves, rewards, 1.0, 1.0)
    moved = [reward + shift for reward in rewards]
    assert credited(tree, leaves, moved, 1.0, 1.0) == pytest.approx(undiscounted, abs=1e-9)
