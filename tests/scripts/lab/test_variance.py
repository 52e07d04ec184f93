"""The variance law: the formula against enumeration, the simulation against known values, slopes of measured tables."""

import itertools
import sys

import numpy as np
import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "lab"))
import variance


def test_the_formula_is_the_linearised_variance():
    mu, sigma2 = np.array([0.2, 0.5, 0.6, 0.9]), np.array([0.1, 0.2, 0.3, 0.05])

    def advantage(values):
        return (values[2] - values.mean()) / values.std()

    step = 1e-5
    slopes = [(advantage(mu + step * e) - advantage(mu - step * e)) / (2 * step) for e in np.eye(4)]
    expected = sum(s**2 * v for s, v in zip(slopes, sigma2, strict=True)) / 8
    assert variance.delta_method(mu, sigma2, 8, thought=2) == pytest.approx(expected, rel=1e-6)


def test_simulated_variance_at_k_4_is_that_of_every_outcome():
    mu = np.linspace(0.2, 0.8, 4)
    outcomes = np.array(list(itertools.product((0.0, 1.0), repeat=4)))
    weights = np.where(outcomes == 1, mu, 1 - mu).prod(axis=1)
    values = variance.standardised(outcomes, ddof=0)[:, 0]
    exact = weights @ values**2 - (weights @ values) ** 2
    measured, formula = variance.simulated("bernoulli", 4, 1, 40_000, np.random.default_rng(0))
    assert measured == pytest.approx(exact, rel=0.02) and formula == pytest.approx(1.232, abs=1e-3)


@pytest.mark.parametrize(("kind", "k", "m"), [("bernoulli", 4, 16), ("gaussian", 4, 16), ("bernoulli", 16, 128)])
def test_the_formula_holds_where_answers_are_many(kind, k, m):
    measured, formula = variance.simulated(kind, k, m, 20_000, np.random.default_rng(1))
    assert measured / formula == pytest.approx(1, abs=0.1)


def test_variances_of_groups_fall_with_answers_and_need_the_thoughts():
    rng = np.random.default_rng(0)
    prompts = [rng.normal(0, 1, (16, 1)) + rng.normal(0, 1, (16, 256)) for _ in range(6)]
    found = variance.policy_table([*prompts, np.zeros((16, 256)), np.ones((3, 256))], resamples=200)
    assert found["prompts"] == 6 and found["K4"]["monotone"]
    low, high = found["K4"]["interval"]
    assert -1.2 < low < found["K4"]["slope"] < high < -0.4
    values = prompts[0][:4].mean(axis=1)
    assert np.isnan(variance.group_variances(prompts[0], 17, 1)) and len(values) == 4
