"""The simulated error of a policy gradient, and the choice of K and M from a probe."""

import numpy as np
import pytest

from trainer.advantages.groups import standardise
from trainer.budget.advice import advise, in_words, sizes_within
from trainer.budget.probe import Probe, variances
from trainer.budget.simulation import Thoughts, gaussian, gradient_error, standardised


def test_rows_are_standardised_as_in_training():
    values = np.array([[1.0, 5.0, 3.0], [2.0, 2.0, 2.0], [0.1, 0.1, 0.4]])
    expected = [standardise(row, [0, 0, 0]) for row in values]
    np.testing.assert_allclose(standardised(values), expected, atol=1e-12)


def test_the_error_of_an_unscaled_estimate_is_that_of_every_draw_enumerated():
    means, probabilities = np.array([0.0, 1.0]), np.array([0.25, 0.75])
    prompt = Thoughts(probabilities, means, lambda drawn, m, rng: means[drawn])
    # two thoughts differ with probability 3/8; the estimate is then (-1/4, 1/4), else 0
    gradient = np.array([-0.1875, 0.1875])
    squares, along = 3 / 8 * 2 / 16, 3 / 8 * (gradient @ [-0.25, 0.25])
    exact = squares * (gradient @ gradient) / along**2 - 1
    found, error = gradient_error([prompt], 2, 1, 200_000, scale="none")
    assert found == pytest.approx(exact, abs=4 * error) and error < 0.02


def test_the_error_falls_as_one_over_k_and_with_the_noise_of_the_answers():
    prompts = [gaussian(1.0, 3.0, 400, np.random.default_rng(0))]
    errors = {pair: gradient_error(prompts, *pair, 20_000, scale="none")[0] for pair in ((8, 1), (16, 1), (8, 3))}
    # (between + within / M) / between / K of 400 thoughts; the mean of K values costs one degree of freedom
    assert errors[8, 1] == pytest.approx(400 * 4 / 7, rel=0.1)
    assert errors[16, 1] == pytest.approx(400 * 4 / 15, rel=0.1)
    assert errors[8, 3] == pytest.approx(400 * 2 / 7, rel=0.1)


def test_more_answers_are_advised_where_answers_are_noisier_or_cheaper(monkeypatch):
    monkeypatch.setattr("trainer.budget.advice.DRAWS", 1000)

    def advised(**changes) -> tuple[int, int]:
        probe = Probe(**{"between": 0.02, "within": 0.1, "thought_cost": 60, "answer_cost": 20} | changes)
        best = advise(probe, sizes_within(probe, 500)).best
        return best.think_num, best.answer_num

    usual = advised()
    assert advised(within=0.005)[1] < usual[1] < advised(within=2.0)[1]
    assert advised(answer_cost=100)[1] <= usual[1] <= advised(answer_cost=2)[1]


def test_pairs_stay_within_the_budget_and_the_rows():
    probe = Probe(0.02, 0.1, 60, 20)
    pairs = sizes_within(probe, 560)
    assert (4, 4) in pairs and all(k * (60 + 20 * m) <= 560 and k >= 2 for k, m in pairs)
    assert all(64 % (k * m) == 0 for k, m in sizes_within(probe, 560, rows=64))
    assert sizes_within(probe, 560, think_num=4)[-1] == (4, 4)
    assert sizes_within(probe, 560, answer_num=4) == [(4, 4)]
    assert sizes_within(probe, 100) == []


def test_the_advice_says_why():
    probe = Probe(0.02, 0.1, 60, 20)
    text = in_words(advise(probe, sizes_within(probe, 560)), probe, 560)
    assert "0.02 between thoughts and 0.1 between the answers" in text and "first guess of answer_num: 3.9" in text
    assert text.splitlines()[1].strip().startswith("4 x 4")


def test_variances_are_recovered_from_a_probe():
    rng = np.random.default_rng(3)
    rewards = [rng.normal(0, 0.3, (8, 1)) + rng.normal(0, 0.5, (8, 8)) for _ in range(400)]
    rewards[0][2, 5] = np.nan  # a thought whose answer has no reward is left out
    between, within = variances(rewards)
    assert between == pytest.approx(0.09, rel=0.1) and within == pytest.approx(0.25, rel=0.05)
    assert variances([np.ones((1, 8)), np.ones((3, 1))]) is None
