"""The simulation of growth: drawn rows are unbiased, and stopping at a success is not."""

import sys

from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "lab"))
from growth_bias import drawn_against_all, stopping


def test_weighted_rows_stand_for_all_rows_and_unweighted_ones_do_not():
    found = drawn_against_all(20_000, seed=2)
    assert found["prompts"] > 300
    mean, error = found["weighted"]
    assert abs(mean) < 4 * error
    mean, error = found["unweighted"]
    assert mean < -4 * error


def test_a_fixed_count_gives_the_success_rate_and_the_first_success_more():
    found = stopping(0.1, 20_000, seed=2)
    mean, error = found["count"]
    assert abs(mean - 1) < 4 * error
    mean, error = found["first success"]
    assert mean - 1 > 4 * error
