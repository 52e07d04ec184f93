"""REINFORCE++'s advantages, both forms: by hand, against the formula, and what leaves them as they are."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages.groups import EPSILON
from trainer.advantages.reinforce_plus_plus import BASELINES, reinforce_plus_plus

NAN = math.nan
rewards = st.integers(-50, 50).map(lambda number: number / 10)
batches = st.lists(st.tuples(rewards | st.just(NAN), st.integers(0, 3)), min_size=1, max_size=20)
baselines = st.sampled_from(BASELINES)


def written_out(values, groups, baseline) -> list[float]:
    """(value - mean) / (sample std + 1e-4) over all values, from which their group's mean was taken first or not."""
    known = [(value, group) for value, group in zip(values, groups, strict=True) if not math.isnan(value)]
    mean = {g: statistics.fmean(v for v, other in known if other == g) if baseline == "prompt" else 0 for _, g in known}
    found = [value - mean[group] for value, group in known]
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    if spread < 1e-6:
        return [0.0] * len(values)
    over_all = statistics.fmean(found)
    return [
        0.0 if math.isnan(value) else (value - mean[group] - over_all) / (spread + 1e-4)
        for value, group in zip(values, groups, strict=True)
    ]


class TestByHand:
    """Prompt 0 has rewards 1 and 0, prompt 1 has 4 and 2, and one leaf abstains."""

    VALUES, PROMPTS = [1, 4, 0, NAN, 2], [0, 1, 0, 0, 1]

    def test_against_the_batch(self):
        """Mean 7 / 4, sum of squares 21: variance (21 - 49 / 4) / 3."""
        std = math.sqrt((21 - 49 / 4) / 3) + EPSILON
        found = reinforce_plus_plus(self.VALUES, self.PROMPTS)
        assert found == pytest.approx([-0.75 / std, 2.25 / std, -1.75 / std, 0, 0.25 / std], abs=1e-12)
        assert reinforce_plus_plus(self.VALUES, self.PROMPTS, scale="none").tolist() == [-0.75, 2.25, -1.75, 0, 0.25]

    def test_against_the_prompt_normalised_over_the_batch(self):
        """Differences 0.5, -0.5, 1, -1: variance 2.5 / 3."""
        std = math.sqrt(2.5 / 3) + EPSILON
        found = reinforce_plus_plus(self.VALUES, self.PROMPTS, "prompt")
        assert found == pytest.approx([0.5 / std, 1 / std, -0.5 / std, 0, -1 / std], abs=1e-12)

    def test_a_prompt_whose_rewards_are_equal_teaches_against_the_batch_alone(self):
        values, prompts = [1, 1, 0, 0.5], [0, 0, 1, 1]
        assert reinforce_plus_plus(values, prompts)[:2].min() > 0.5
        assert reinforce_plus_plus(values, prompts, "prompt")[:2].tolist() == [0, 0]

    @pytest.mark.parametrize("baseline", BASELINES)
    def test_equal_rewards_and_none_give_nothing(self, baseline):
        assert reinforce_plus_plus([0.1 + 0.2, 0.3, NAN], [0, 0, 1], baseline).tolist() == [0] * 3
        assert reinforce_plus_plus([], [], baseline).tolist() == []


class TestLaws:
    @given(batches, baselines)
    def test_the_formula(self, batch, baseline):
        values, groups = zip(*batch, strict=True)
        wanted = written_out(values, groups, baseline)
        assert reinforce_plus_plus(values, groups, baseline) == pytest.approx(wanted, abs=1e-8)

    @given(batches, baselines, st.randoms())
    def test_the_batch_sums_to_nothing_whatever_its_order(self, batch, baseline, random):
        values, groups = (np.array(column, dtype=float) for column in zip(*batch, strict=True))
        out = reinforce_plus_plus(values, groups, baseline)
        assert out.sum() == pytest.approx(0, abs=1e-8)
        order = random.sample(range(len(values)), len(values))
        assert reinforce_plus_plus(values[order], groups[order], baseline) == pytest.approx(out[order], abs=1e-8)

    @given(batches, st.floats(-10, 10), st.integers(0, 3))
    def test_with_the_prompts_baseline_a_shift_of_one_prompt_changes_nothing(self, batch, shift, prompt):
        values, groups = (np.array(column, dtype=float) for column in zip(*batch, strict=True))
        moved = values + shift * (groups == prompt)
        out = reinforce_plus_plus(values, groups, "prompt")
        assert reinforce_plus_plus(moved, groups, "prompt") == pytest.approx(out, abs=1e-6)

    @given(batches, baselines, st.floats(-10, 10), st.floats(0.5, 20))
    def test_a_shift_and_a_factor_of_all_rewards_change_nothing(self, batch, baseline, shift, factor):
        """Up to the epsilon, which changes a std of at least 0.02 by at most 1%."""
        values, groups = (np.array(column, dtype=float) for column in zip(*batch, strict=True))
        out = reinforce_plus_plus(values, groups, baseline)
        moved = reinforce_plus_plus(factor * values + shift, groups, baseline)
        assert moved == pytest.approx(out, rel=1e-2, abs=1e-6)
