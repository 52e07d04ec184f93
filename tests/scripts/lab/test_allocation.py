"""Adaptive answers: the budget is kept, certain thoughts get fewer, and fresh answers are unbiased; shrinkage."""

import sys

import numpy as np
import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "lab"))
import allocation

from trainer.advantages.thought_answer import thought_answer


class Counted(np.random.Generator):
    """Counts the answers that are drawn one by one."""

    def __init__(self):
        super().__init__(np.random.PCG64(1))
        self.draws = 0

    def random(self, size=None, **given):
        self.draws += 1
        return super().random(size, **given)


@pytest.mark.parametrize(("fresh", "one_by_one"), [(False, 4 * 4 - 8), (True, 4 * 4 - 8 - 4)])
def test_the_number_of_answers_is_that_of_the_plain_estimate(fresh, one_by_one):
    rng = Counted()
    values = allocation.adaptive(np.full((5, 4), 0.5), 4, rng, fresh)
    assert values.shape == (5, 4) and rng.draws == one_by_one


def test_fresh_answers_are_unbiased_and_all_answers_are_not():
    bias = allocation.largest_bias(4, 4, 40_000, seed=1)
    assert bias["adaptive, fresh"] < 0.02 < bias["adaptive, all"]


def test_shrinkage_is_by_the_reliability_that_is_logged():
    rewards = np.array([[[1.0, 1, 0, 1], [0, 0, 1, 0]]])
    plain = thought_answer(rewards.ravel(), [0] * 8, [0] * 4 + [1] * 4)
    assert 0 < plain.rho < 1
    assert allocation.shrunk(rewards)[0] == pytest.approx(plain.thought[[0, 4]] * plain.rho)
