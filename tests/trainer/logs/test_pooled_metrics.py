"""Logged means are over tokens, completions and rows, however these are spread over micro-batches and processes."""

import math

import pytest
from reward_cases import make_task
from trainer_cases import script, text_rows, text_trainer, thought_tree

from task.rewards.router import TaskReward
from trainer.logs.metrics import Largest, Mean, pool_all, pooled

THOUGHTS = [[301, 302], [303]]


def uneven_tree(prompt_id, policy):
    """The second prompt has no answer at all: none of its thoughts closed."""
    answers = [[[304], [305, 306]], [[307], [308]]] if prompt_id == "row-0" else [[], []]
    return thought_tree(prompt_id, THOUGHTS, answers)


def entry_of(tiny_text, folder, monkeypatch, **changes) -> dict:
    script(monkeypatch, uneven_tree)
    trainer = text_trainer(tiny_text, folder, rows=2, beta=0.1, perturb=0.01, **changes)
    trainer.train()
    return trainer.state.log_history[0]


@pytest.mark.parametrize("name", ["answer/entropy", "answer/kl", "thought/entropy", "thought/kl"])
def test_a_micro_batch_without_answers_does_not_count_as_zero(tiny_text, tmp_path, monkeypatch, name):
    cut = entry_of(tiny_text, tmp_path / "cut", monkeypatch, gradient_accumulation_steps=2)
    whole = entry_of(tiny_text, tmp_path / "whole", monkeypatch, per_device_train_batch_size=8)
    assert whole[name] > 0
    assert cut[name] == pytest.approx(whole[name], rel=1e-4)


def test_means_are_pooled_by_their_counts():
    assert pooled([Mean(0.5, 2), Mean(0.0, 6), Mean(math.nan, 0)]) == 0.125
    assert pooled([1.0, math.nan, 2.0]) == 1.5
    assert pooled([Mean(0.3, 0), math.nan]) is None
    assert pooled([Largest(2.0), Largest(5.0), Largest(1.0)]) == 5.0
    metrics = {"known": [Mean(1.0, 1), Mean(0.0, 3)], "unknown": [math.nan]}
    pool_all(metrics)
    assert metrics == {"known": [0.25]}


def test_no_tracker_gets_a_value_that_is_no_number(tiny_text, tmp_path, monkeypatch):
    entry = entry_of(tiny_text, tmp_path, monkeypatch, gradient_accumulation_steps=2)
    assert all(isinstance(value, int | float) and math.isfinite(value) for value in entry.values())


def test_a_tasks_own_mean_is_over_completions_and_not_over_processes():
    """Two processes with 3 and 1 completions of a task: (1 + 0 + 0 + 1) / 4, and not the mean of 1/3 and 1."""
    task = make_task(accuracy=lambda completion, sol, **kw: (float(completion == "right"), {"seen": 2.0}))
    record = text_rows(1)[0]["record"].replace('"test"', f'"{task.name}"')
    logged = []
    for completions in (["right", "wrong", "wrong"], ["right"]):
        reward = TaskReward("accuracy", {task.name: task})
        log = {"log_metric": lambda name, value: logged.append((name, value))}
        reward(None, completions, [record] * len(completions), **log)
    values = [value for name, value in logged if name == f"rewards/{task.name}/accuracy"]
    assert sum(values) / len(values) == 0.5
