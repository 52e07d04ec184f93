"""A user's own reward functions: loaded by name, given records as dicts, plain, asynchronous or callable objects."""

import asyncio
import json
import sys
from functools import partial

import pytest
import torch

from task.errors import UserError
from task.rewards.own_rewards import checked_rewards, load_rewards
from task.rewards.router import task_rewards
from task.task_loader import load_tasks

RECORDS = [json.dumps({"id": name, "extra": {"budget": budget}}) for name, budget in (("a", 2), ("a", 2), ("b", 4))]


def budget(completions, record, **keywords):
    assert record[0] is record[1]
    return [len(text) / one["extra"]["budget"] for text, one in zip(completions, record, strict=True)]


async def awaited(completions, record, **keywords):
    return budget(completions, record)


def scaled(completions, record, scale=1, **keywords):
    return [scale * value for value in budget(completions, record)]


class Object:
    def __call__(self, completions, record, **keywords):
        return budget(completions, record)


class AwaitedObject:
    async def __call__(self, completions, record, **keywords):
        return budget(completions, record)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (budget, "budget"),
        (awaited, "awaited"),
        (partial(scaled, scale=1), "scaled"),
        (Object(), "Object"),
        (AwaitedObject(), "AwaitedObject"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_function_of_any_form_gets_records_as_dicts(function, name):
    (checked,) = checked_rewards([function])
    values = checked(prompts=["p"] * 3, completions=["x", "xy", "xyz"], record=RECORDS)
    values = asyncio.run(values) if asyncio.iscoroutine(values) else values
    assert values == [0.5, 1.0, 0.75] and checked.__name__ == name


def test_task_rewards_and_reward_models_stay_as_they_are():
    functions = [*task_rewards(load_tasks()), torch.nn.Linear(1, 1), "org/reward-model"]
    assert checked_rewards(functions) == functions


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the working folder with the given text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(text):
        (tmp_path / "my_rewards_of_a_test.py").write_text(text)
        return "my_rewards_of_a_test"

    yield write
    sys.modules.pop("my_rewards_of_a_test", None)


def test_a_function_is_found_in_the_working_folder(module):
    name = module("def brevity(completions, **keywords):\n    return [-len(text) for text in completions]\n")
    (function,) = load_rewards([f"{name}:brevity"])
    assert function(completions=["abc"]) == [-3] and load_rewards([]) == []


def raising(completions, record, **keywords):
    return [1 / one["budget"] for one in record]


async def raising_awaited(completions, record, **keywords):
    return raising(completions, record)


def narrow(completions):
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (raising, ["test_own_rewards.py:", "reward function raising failed on 3 completions (KeyError: 'budget')"]),
        (raising_awaited, ["test_own_rewards.py:", "reward function raising_awaited failed", "KeyError: 'budget'"]),
        (partial(raising), ["test_own_rewards.py:", "reward function raising failed"]),
        (narrow, ["reward function narrow failed", "unexpected keyword argument 'prompts'", "**keywords for the rest"]),
    ],
)
def test_a_function_that_raises_is_one_sentence_with_its_place(function, words):
    (checked,) = checked_rewards([function])

    async def call():
        values = checked(prompts=["p"] * 3, completions=["x", "xy", "xyz"], record=RECORDS)
        return await values if asyncio.iscoroutine(values) else values

    with pytest.raises(UserError) as told:
        asyncio.run(call())
    assert all(word in str(told.value) for word in words) and isinstance(told.value.__cause__, Exception)


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("", "{}", "must be MODULE:FUNCTION"),
        ("def brevity(): ...", "{}:brevty", "has no function brevty: did you mean brevity?"),
        ("brevity = 3", "{}:brevity", "has no function brevity"),
        ("x = 1\nraise ValueError('no')", "{}:brevity", "my_rewards_of_a_test.py:2 fails (ValueError: no)"),
        ("import absent_library_x", "{}:brevity", "cannot be imported (No module named 'absent_library_x')"),
        ("", "absent_module_x:brevity", "there is no module absent_module_x in "),
    ],
)
def test_a_name_that_cannot_be_loaded_is_a_sentence(module, text, given, words):
    name = module(text)
    with pytest.raises(UserError) as told:
        load_rewards([given.format(name)])
    assert words in str(told.value)
    assert ("did you mean" in str(told.value)) == ("did you mean" in words)  # never the same name again
