"""Advantages in groups of any size, order and naming, with abstaining rows, against statistics worked out by hand."""

import math
import random
import statistics

import pytest

from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.thought_answer import thought_answer

NAN = math.nan
IDS = {
    "numbers": [3, -1, 10**9, 0, 7],
    "texts": ["b", "a", "", "a:1", "é"],
    "number-like texts": ["10", "9", "1", "01", "1.0"],
}


def by_hand(values, groups) -> list[float]:
    """(value - mean) / (sample std + 1e-4) of the value's group; 0 alone, without spread and for NaN."""
    out = []
    for value, group in zip(values, groups, strict=True):
        members = [v for v, g in zip(values, groups, strict=True) if g == group and not math.isnan(v)]
        spread = statistics.stdev(members) if len(members) > 1 else 0.0
        alone = math.isnan(value) or spread < 1e-6 * max(1.0, *map(abs, members))
        out.append(0.0 if alone else (value - statistics.fmean(members)) / (spread + 1e-4))
    return out


@pytest.mark.parametrize("ids", IDS)
def test_random_groups_equal_the_statistics_of_each(ids):
    draw = random.Random(0)
    rewards = [0.0, 1.0, 0.1, -2.5, 1e-7, 1e6, NAN]
    sizes = set()
    for _ in range(300):
        groups = draw.choices(IDS[ids][: draw.randint(1, 5)], k=draw.randint(1, 14))
        values = [draw.choice(rewards) for _ in groups]
        assert leaf_group(values, groups).tolist() == pytest.approx(by_hand(values, groups), abs=1e-9)
        sizes |= {groups.count(group) for group in groups}
    assert {1, 2, 3, 5} <= sizes


@pytest.mark.parametrize(
    ("rewards", "groups", "expected"),
    [
        ([1, 3, 5], [0, 0, 1], [-0.7070, 0.7070, 0]),
        ([5, 1, 3], ["single", "pair", "pair"], [0, -0.7070, 0.7070]),
        ([1, 0, NAN, 2], [0, 0, 0, 1], [0.7070, -0.7070, 0, 0]),
        ([1, NAN, 0, NAN], [0, 0, 1, 1], [0, 0, 0, 0]),  # one scored row of two is a group of one
        ([NAN, NAN, 1, 0], [0, 0, 1, 1], [0, 0, 0.7070, -0.7070]),
        ([1e8, 1e8 + 1], [0, 0], [0, 0]),  # below rounding of the largest value
        ([0.0, 0.0, 0.0], [0, 1, 2], [0, 0, 0]),
    ],
)
def test_unequal_groups(rewards, groups, expected):
    assert leaf_group(rewards, groups).tolist() == pytest.approx(expected, abs=1e-3)


def test_answers_of_unequal_number_below_thoughts_of_unequal_number():
    """Each level by its own ids: values 0.5, 1 and (alone) 0.25; a prompt of one thought compares nothing."""
    rewards = [1.0, 0.0, 1.0, 0.25, 0.75, 0.25]
    prompts = ["p", "p", "p", "q", "q", "q"]
    thoughts = [0, 0, 1, 2, 2, 2]
    order = [4, 0, 5, 2, 3, 1]
    for rows in (range(6), order):
        pick = [list(column[i] for i in rows) for column in (rewards, prompts, thoughts)]
        out = thought_answer(*pick)
        expected = [by_hand([0.5, 1.0], "pp")[0]] * 2 + [by_hand([0.5, 1.0], "pp")[1]] + [0.0] * 3
        assert out.thought.tolist() == pytest.approx([expected[i] for i in rows])
        answers = by_hand(rewards, prompts)
        assert out.answer.tolist() == pytest.approx([answers[i] for i in rows])


@pytest.mark.parametrize("closed", [[True] * 4, [True, True, False, False], [False] * 4])
@pytest.mark.parametrize("rewards", [[NAN] * 4, [1, NAN, NAN, NAN], [1, 0, NAN, NAN], [0.1] * 4])
def test_nothing_is_ever_not_a_number_but_an_undefined_rho(rewards, closed):
    out = thought_answer(rewards, [0] * 4, [0, 0, 1, 1], closed)
    for column in (out.thought, out.answer):
        assert all(math.isfinite(value) for value in column)
    assert not math.isinf(out.rho)
