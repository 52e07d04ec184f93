"""Tasks whose accuracy_reward is async: an evaluation scores several of their completions at a time."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from reward_cases import make_task

from task.errors import UserError
from trainer.evaluation.batches import Sample
from trainer.evaluation.predict import _predictions


def pairs_of(*question_types: str) -> list[tuple]:
    """(unit, samples) of one record of each type, whose completion is its place."""
    found = []
    for place, question_type in enumerate(question_types):
        record = {"id": str(place), "question_type": question_type, "answer": "x"}
        prompt = SimpleNamespace(image_sizes=[], processed_sizes=[])
        unit = SimpleNamespace(place=place, record=record, prompt=prompt)
        found.append((unit, [Sample(token_ids=[place], status="ok", sampled=1)]))
    return found


def test_async_rewards_wait_together_and_others_stay_in_this_thread():
    threads, under_way, most = [], 0, 0

    async def slowly(completion, sol, **kw):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.2)
        under_way -= 1
        return float(completion), {}

    def plain(completion, sol, **kw):
        threads.append(threading.current_thread())
        return -float(completion)

    tasks = {"slow": make_task("slow", slowly), "plain": make_task("plain", plain)}
    found = _predictions(tasks, pairs_of("slow", "plain", "slow", "slow", "plain"), lambda ids: str(ids[0]))
    assert most == 3
    assert {place: one["accuracy"] for place, one in found.items()} == {0: 0.0, 1: -1.0, 2: 2.0, 3: 3.0, 4: -4.0}
    assert set(threads) == {threading.main_thread()}


def test_one_that_raises_ends_the_evaluation():
    async def broken(completion, sol, **kw):
        raise RuntimeError("no judge")

    with pytest.raises(UserError, match=r"accuracy_reward fails on record '0' \(RuntimeError: no judge\)"):
        _predictions({"slow": make_task("slow", broken)}, pairs_of("slow"), lambda ids: "x")
