"""What divides reward differences (`scale_rewards`): the std of the group, of the batch, or nothing; each by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import nanstd

from trainer.advantages.groups import EPSILON, SCALES, standardise
from trainer.advantages.intra_inter import intra_inter
from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.thought_answer import thought_answer

NAN = math.nan
# Prompt 0: thoughts worth 0.5 and 0; prompt 1: thoughts worth 3 and 2.
REWARDS, PROMPTS, THOUGHTS = [1, 0, 0, 0, 4, 2, 2, 2], [0] * 4 + [1] * 4, [0, 0, 1, 1, 2, 2, 3, 3]
ANSWERS = [0.75, -0.25, -0.25, -0.25, 1.5, -0.5, -0.5, -0.5]  # rewards minus 0.25 and 2.5, the prompts' means
# Of all rewards: mean 11 / 8, sum of squares 29, so (29 - 121 / 8) / 7; of the values: mean 1.375, 13.25 - 4 * 1.375^2.
REWARD_STD, VALUE_STD = math.sqrt((29 - 121 / 8) / 7), math.sqrt((13.25 - 4 * 1.375**2) / 3)
# Few enough digits that a spread is either nothing or far above rounding.
rewards = st.integers(-50, 50).map(lambda number: number / 10)
batches = st.lists(st.tuples(rewards | st.just(NAN), st.integers(0, 3)), min_size=1, max_size=20)


def columns(batch):
    values, groups = zip(*batch, strict=True)
    return np.array(values, dtype=float), np.array(groups)


class TestByHand:
    def test_the_leaves_of_a_prompt(self):
        assert leaf_group(REWARDS, PROMPTS, "none").tolist() == ANSWERS
        batch = [a / (REWARD_STD + EPSILON) for a in ANSWERS]
        assert leaf_group(REWARDS, PROMPTS, "batch") == pytest.approx(batch, abs=1e-12)
        assert leaf_group(REWARDS, PROMPTS, "group")[[0, 4]] == pytest.approx([1.5, 1.5], abs=1e-3)

    def test_thoughts_and_answers_each_by_the_std_of_its_own_level(self):
        thoughts = [0.25, 0.25, -0.25, -0.25, 0.5, 0.5, -0.5, -0.5]
        out = thought_answer(REWARDS, PROMPTS, THOUGHTS, scale="none")
        assert (out.thought.tolist(), out.answer.tolist()) == (thoughts, ANSWERS)
        out = thought_answer(REWARDS, PROMPTS, THOUGHTS, scale="batch")
        assert out.thought == pytest.approx([a / (VALUE_STD + EPSILON) for a in thoughts], abs=1e-12)
        assert out.answer == pytest.approx([a / (REWARD_STD + EPSILON) for a in ANSWERS], abs=1e-12)

    def test_a_leaf_in_its_tree_and_in_its_prompt(self):
        intra = [0.5, -0.5, 0, 0, 1, -1, 0, 0]
        both = [a + b for a, b in zip(intra, ANSWERS, strict=True)]
        assert intra_inter(REWARDS, PROMPTS, THOUGHTS, "intra", "none").tolist() == intra
        assert intra_inter(REWARDS, PROMPTS, THOUGHTS, scale="none").tolist() == both
        batch = [a / (REWARD_STD + EPSILON) for a in both]
        assert intra_inter(REWARDS, PROMPTS, THOUGHTS, scale="batch") == pytest.approx(batch, abs=1e-12)

    def test_thoughts_that_hardly_matter_are_brought_to_unit_size_by_their_own_std_alone(self):
        """Values 0.5 and 0.501 in one prompt, 0 and 1 in the other."""
        rewards, prompts, thoughts = [0.5, 0.501, 0.0, 1.0], [0, 0, 1, 1], [0, 1, 2, 3]
        size = {name: thought_answer(rewards, prompts, thoughts, scale=name).thought[1] for name in SCALES}
        assert size["group"] > 0.6
        assert size["none"] == pytest.approx(0.0005)
        assert size["batch"] < 0.002

    @pytest.mark.parametrize("scale", SCALES)
    def test_equal_rewards_a_group_of_one_and_an_abstaining_row_get_exactly_nothing(self, scale):
        values, groups = [0.1 + 0.2, 0.3, 5.0, NAN, 1.0, 0.0], [0, 0, 1, 2, 2, 2]
        out = standardise(values, groups, scale)
        assert out[:4].tolist() == [0.0] * 4
        assert out[4] == -out[5] > 0


class TestLaws:
    @given(batches, st.sampled_from(SCALES))
    def test_the_advantages_of_a_group_sum_to_nothing(self, batch, scale):
        values, groups = columns(batch)
        out = standardise(values, groups, scale)
        for group in set(groups):
            assert out[groups == group].sum() == pytest.approx(0, abs=1e-9)

    @given(batches, st.sampled_from(SCALES), st.floats(-10, 10))
    def test_the_same_added_to_all_rewards_changes_nothing(self, batch, scale, shift):
        values, groups = columns(batch)
        moved = standardise(values + shift, groups, scale)
        assert moved == pytest.approx(standardise(values, groups, scale), abs=1e-6)

    @given(batches, st.sampled_from(SCALES), st.floats(0.5, 20))
    def test_a_factor_of_all_rewards_is_that_of_unscaled_advantages_alone(self, batch, scale, factor):
        """Up to the epsilon: a std of at least 0.05 here, so 1e-4 changes a ratio by at most 0.4%."""
        values, groups = columns(batch)
        wanted = standardise(values, groups, scale) * (factor if scale == "none" else 1)
        assert standardise(values * factor, groups, scale) == pytest.approx(wanted, rel=5e-3, abs=1e-9)

    @given(st.lists(rewards, min_size=8, max_size=8), st.sampled_from(SCALES))
    def test_the_formulas_of_trl(self, values, scale):
        """TRL corrects the variance by a float32 factor."""
        grouped = torch.tensor(values, dtype=torch.float64).view(2, 4)
        wanted = grouped - grouped.mean(dim=1, keepdim=True)
        if scale != "none":
            wanted /= (nanstd(grouped, dim=1, keepdim=True) if scale == "group" else nanstd(grouped)) + 1e-4
        assert leaf_group(values, PROMPTS, scale) == pytest.approx(wanted.flatten().numpy(), rel=1e-6, abs=1e-9)
