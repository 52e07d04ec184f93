"""pass@k against counting all draws, and intervals that hold what they promise."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from trainer.evaluation import intervals
from trainer.evaluation.intervals import bootstrap_interval, mean_interval
from trainer.evaluation.item_metrics import item_metrics, pass_at_k


def counted(n, c, k):
    """The share of all draws of k among n, c of which passed, that hold a passed one."""
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    return Fraction(sum(map(any, draws)), len(draws))


def test_pass_at_k_of_small_items_is_what_counting_gives():
    for n, c, k in itertools.product(range(1, 9), range(9), range(1, 9)):
        if c <= n and k <= n:
            assert pass_at_k(n, c, k) == pytest.approx(float(counted(n, c, k)), abs=1e-12)


def test_pass_at_k_of_a_thousand_items_to_twelve_digits():
    draw = random.Random(0)
    for _ in range(1000):
        n = draw.randint(1, 256)
        c, k = draw.randint(0, n), 2 ** draw.randint(0, n.bit_length() - 1)
        missed = Fraction(1)  # all k draws miss: (n-c)/n * (n-c-1)/(n-1) * ...
        for i in range(k):
            missed *= Fraction(max(n - c - i, 0), n - i)
        assert abs(pass_at_k(n, c, k) - float(1 - missed)) <= 1e-12


def test_pass_at_k_is_unbiased():
    draw = np.random.default_rng(0)
    p, n, k = 0.3, 8, 4
    estimates = [pass_at_k(n, int(draw.binomial(n, p)), k) for _ in range(4000)]
    assert np.mean(estimates) == pytest.approx(1 - (1 - p) ** k, abs=0.01)


def test_samples_that_abstain_or_failed_do_not_count():
    def sample(accuracy, status="ok"):
        return {"accuracy": accuracy, "format": 1.0, "status": status}

    samples = [sample(1.0), sample(0.0), sample(None), sample(None, "tool_error")]
    item = {"id": "a", "status": "ok", "accuracy": 0.5, "format": 1.0, "samples": samples}
    metrics = item_metrics(item, None)
    assert metrics == {"accuracy": 0.5, "format": 1.0, "pass@1": 0.5, "pass@2": 1.0, "mean@4": 0.5}
    assert item_metrics({"id": "a", "status": "oom", "accuracy": None, "format": None}, None) == {}


def coverage(draw_items, truth, n, simulations=2000, seed=0):
    rng = np.random.default_rng(seed)
    inside = 0
    for number in range(simulations):
        values = draw_items(rng, n)
        low, high = mean_interval(values, resamples=1000, seed=number)
        inside += low - 1e-12 <= truth <= high + 1e-12
    return inside / simulations


def passes(rng, n):
    """pass@4 of 8 samples, items of very different difficulty."""
    return np.array([pass_at_k(8, int(c), 4) for c in rng.binomial(8, rng.beta(0.5, 0.5, n))])


def mean_pass():
    # 1 - E[(1 - p)^4] for p ~ Beta(1/2, 1/2)
    return 1 - (0.5 * 1.5 * 2.5 * 3.5) / (1 * 2 * 3 * 4)


CASES = {
    "mostly right": (lambda rng, n: (rng.random(n) < 0.9).astype(float), 0.9, 100),
    "half right": (lambda rng, n: (rng.random(n) < 0.5).astype(float), 0.5, 64),
    "scores between 0 and 1": (lambda rng, n: rng.beta(0.5, 0.5, n), 0.5, 64),
    "zeros and scores": (lambda rng, n: (rng.random(n) < 0.7) * rng.beta(2, 2, n), 0.35, 64),
    "means of 4": (lambda rng, n: rng.binomial(4, 0.6, n) / 4, 0.6, 64),
    "pass@4": (passes, mean_pass(), 100),
    "distances": (lambda rng, n: rng.gamma(2.0, 10.0, n), 20.0, 128),
}


@pytest.mark.parametrize("name", list(CASES))
def test_intervals_cover_the_truth(name):
    draw_items, truth, n = CASES[name]
    share = coverage(draw_items, truth, n)
    print(f"coverage of {name}, {n} items: {share:.4f}")
    assert 0.93 <= share <= 0.97


def test_all_right_is_no_certainty():
    low, high = mean_interval([1.0] * 64)
    assert (round(low, 3), high) == (0.943, 1.0)
    assert mean_interval([0.0] * 64) == (0.0, pytest.approx(1 - low))


def test_the_bootstrap_agrees_with_the_normal_interval_repeats_and_goes_in_pieces(monkeypatch):
    values = np.random.default_rng(0).normal(0.1, 0.3, size=400)
    low, high = bootstrap_interval(values, seed=42)
    half = 1.96 * values.std(ddof=1) / 20
    assert (low, high) == (
        pytest.approx(values.mean() - half, abs=0.003),
        pytest.approx(values.mean() + half, abs=0.003),
    )
    assert bootstrap_interval(values, seed=42) == (low, high) != bootstrap_interval(values, seed=43)
    monkeypatch.setattr(intervals, "RESAMPLES_AT_ONCE", 7)
    assert bootstrap_interval(np.full(5, 0.125), resamples=200) == (0.125, 0.125)
