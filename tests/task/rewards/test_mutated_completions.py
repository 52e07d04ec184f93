"""Rewards on ten thousand near misses of a right answer: finite, inside their range, and not all alike."""

import math
import random

import pytest
from task_cases import ANSWERS, TASKS, arguments, mutated, said

RIGHT = {
    "trajectory-sharerobot": said([[1, 2], [30, 40]]),
    "affordance-sharerobot": said([1, 2, 30, 40]),
    "object-detection": said(ANSWERS["object-detection"]),
    "demand-prediction": said([20, 30]),
    "ocr-vqa": said("10:30 AM"),
}


def check(name: str, count: int) -> None:
    draw = random.Random(name)
    sol, keywords = arguments(name, ANSWERS[name])
    seen = set()
    for _ in range(count):
        completion = mutated(RIGHT[name], draw)
        form = TASKS[name].format_reward(completion, sol, **keywords)
        score, logged = TASKS[name].accuracy_reward(completion, sol, **keywords)
        assert form in (0.0, 1.0) and 0.0 <= score <= 1.0, completion
        assert all(math.isfinite(value) for value in logged.values()), completion
        seen.add((form, score > 0))
    assert {(0.0, False), (0.0, True), (1.0, True)} <= seen


@pytest.mark.parametrize("name", RIGHT)
def test_mutated_completions(name):
    check(name, 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_ten_thousand_mutated_completions(name):
    check(name, 10_000)
