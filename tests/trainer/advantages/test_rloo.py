"""RLOO's advantages: by hand, against the formula, and what leaves them as they are."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages.groups import EPSILON
from trainer.advantages.rloo import rloo

NAN = math.nan
rewards = st.integers(-50, 50).map(lambda number: number / 10)
batches = st.lists(st.tuples(rewards | st.just(NAN), st.integers(0, 3)), min_size=1, max_size=20)


def leave_one_out(values, groups) -> list[float]:
    """R_i minus the mean of the other rewards of its group; 0 alone and for NaN."""
    out = []
    for i, (value, group) in enumerate(zip(values, groups, strict=True)):
        others = [v for j, v in enumerate(values) if j != i and groups[j] == group and not math.isnan(v)]
        out.append(value - sum(others) / len(others) if others and not math.isnan(value) else 0.0)
    return out


def test_two_prompts_by_hand():
    """Prompt 0: 1, 2, 3 with means of the others 2.5, 2, 1.5, and one that abstains; prompts 1 and 2 have one each."""
    found = rloo([1, 5, 2, NAN, 3, 4], [0, 1, 0, 0, 0, 2])
    assert found == pytest.approx([-1.5, 0, 0, 0, 1.5, 0], abs=1e-12)
    assert rloo([1, 0, 0, 0], [7] * 4) == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])


def test_scaled_by_hand():
    """1 and 0 in prompt 0, 4 and 0 in prompt 1: all of them have mean 1.25 and variance 43 / 12."""
    values, prompts = [1, 0, 4, 0], [0, 0, 1, 1]
    assert rloo(values, prompts, "group") == pytest.approx([2**0.5, -(2**0.5)] * 2, rel=2e-4)
    batch = math.sqrt(43 / 12) + EPSILON
    assert rloo(values, prompts, "batch") == pytest.approx([1 / batch, -1 / batch, 4 / batch, -4 / batch])


def test_no_row_and_no_reward():
    assert rloo([], []).tolist() == []
    assert rloo([NAN, NAN], [0, 0]).tolist() == [0, 0]


@given(batches)
def test_the_formula(batch):
    values, groups = zip(*batch, strict=True)
    assert rloo(values, groups) == pytest.approx(leave_one_out(values, groups), abs=1e-9)


@given(batches, st.floats(-10, 10), st.floats(0.5, 20), st.randoms())
def test_sum_shift_factor_and_order(batch, shift, factor, random):
    values, groups = (np.array(column, dtype=float) for column in zip(*batch, strict=True))
    out = rloo(values, groups)
    for group in set(groups):
        assert out[groups == group].sum() == pytest.approx(0, abs=1e-9)
    assert rloo(values + shift, groups) == pytest.approx(out, abs=1e-6)
    assert rloo(values * factor, groups) == pytest.approx(out * factor, abs=1e-6)
    order = random.sample(range(len(values)), len(values))
    assert rloo(values[order], groups[order]) == pytest.approx(out[order], abs=1e-9)
