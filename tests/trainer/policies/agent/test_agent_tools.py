"""Tools as people write them: hints of every kind, coroutines, interruptions; what goes in and comes out is kept."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, Literal, Optional

import pytest
from agent_cases import Counter, Echo, ScriptedAgent, policy_of, task_of, turns
from paths import ROOT
from PIL import Image

from config.methods.tree_grpo import TreeGRPOFields
from trainer.policies.agent.arguments import argument_of, bind_arguments
from trainer.policies.agent.build import check_agents
from trainer.policies.agent.calls import Point, parts_of
from trainer.policies.agent.forms import Action

SEARCH, ANSWER = "<think>t</think><search>q</search>", "<think>t</think><answer>x</answer>"


def act(point: Point, *actions: Action):
    return point.act(actions, 5)[0]


def shown(taken) -> list[str]:
    return [part["text"] for result in taken.results for part in result]


def numbers(self, numbers: list[int]): ...
def maybe(self, number: Optional[int]): ...  # noqa: UP045 (as people write it)
def table(self, cells: dict[str, float]): ...
def one_of(self, number: Literal[1, 2]): ...
def named(self, name: Literal["a", "b"]): ...
def text_or_list(self, value: str | list[str]): ...
def anything(self, value: Any): ...
def bare(self, value): ...
def keyword(self, *, query: str, **others: int): ...
def unknown(self, number: int, where: Unimported = None): ...  # noqa: F821


@pytest.mark.parametrize(
    ("tool", "text", "value"),
    [
        (numbers, "[1, 2]", [1, 2]), (maybe, "4", 4), (maybe, "null", None), (table, '{"a": 1}', {"a": 1}),
        (one_of, "2", 2), (named, "a", "a"), (text_or_list, "[1]", "[1]"), (anything, "3", "3"), (bare, "3", "3"),
        (keyword, "3", "3"), (unknown, "3", 3),
    ],
)  # fmt: skip
def test_a_tags_text_becomes_what_the_hint_says(tool, text, value):
    method = tool.__get__(object())
    assert bind_arguments(method, text) == {argument_of(method): value}


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        (numbers, {"numbers": "1, 2"}, "numbers must be list, not str"),
        (maybe, {"number": 1.5}, "number must be NoneType or int, not float"),
        (table, {"cells": [1]}, "cells must be dict, not list"),
        (keyword, {"query": None}, "query must be str, not NoneType"),
        (numbers, "1, 2", "Extra data"),
        (numbers, "[" * 100_000, "nested too deeply"),
        (lambda *all: None, "x", "it needs 0 arguments"),
    ],
)
def test_what_the_hint_does_not_allow_is_told(tool, arguments, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        bind_arguments(tool.__get__(object()), arguments)


class Async(Echo):
    """Keeps a task open from its first call on, as a session or a connection is."""

    async def search(self, query: str) -> str:
        if query == "stop":
            raise SystemExit(1)
        if query == "cancel":
            raise asyncio.CancelledError
        self._open = getattr(self, "_open", None) or asyncio.create_task(asyncio.sleep(0.01, "the session's answer"))
        return await self._open


def test_what_an_async_tool_opens_outlives_the_call():
    point = Point(Async)
    first = act(point, Action("search", "a"))
    assert shown(first) == shown(act(first.point, Action("search", "b"))) == ["the session's answer"]
    ended = act(first.point, Action("search", "stop"), Action("search", "cancel"))
    assert ended.faults == ["raised", "raised"] and "SystemExit: 1" in shown(ended)[0]
    assert shown(act(first.point, Action("search", "c"))) == ["the session's answer"], "the loop still runs"


def test_async_tools_that_block_the_loop_are_through_one_after_another():
    class Blocking(Echo):
        async def search(self, query: str) -> str:
            time.sleep(0.2)
            return query

    ends = []

    def call():
        act(Point(Blocking), Action("search", "q"))
        ends.append(time.monotonic())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert len(ends) == 4 and max(ends) - min(ends) > 0.3, "none waits for those behind it"


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("where", ["search", "reset", "_fork"])
def test_an_interruption_of_a_tools_own_ends_nothing(tiny_text, error, where):
    """A real Ctrl-C comes to the main thread, and tools never run there."""
    calls = []

    def search(self, query: str):
        raise error

    def later(self, **row):
        calls.append(where)
        if len(calls) > 1:  # the first is the check before the run
            raise error
        return self if where == "_fork" else None

    raising = search if where == "search" else later
    made = type("Interrupted", (Echo,), {where: raising})
    policy = policy_of(made, tiny_text, tasks={"interrupted": task_of(made, "interrupted")}, expand_num=0)
    (tree,) = ScriptedAgent(tiny_text[2], turns(SEARCH, ANSWER)).grow(policy, ["a"])
    counts = {name: count for name, (count, _) in policy.metrics([tree]).items() if "errors" in name and count}
    assert counts == {f"tool/errors/{ {'search': 'raised', 'reset': 'reset', '_fork': 'fork'}[where] }": 2}


@pytest.mark.parametrize("many", [list, tuple])
def test_texts_beside_a_picture_are_parts(many):
    picture = Image.new("RGB", (2, 2))
    assert [part["type"] for part in parts_of(many(["you moved", picture]))] == ["text", "image"]
    for other in (["a", "b"], ["a", picture, 3]):
        assert parts_of(many(other)) == [{"type": "text", "text": str(many(other))}]


def test_a_tool_that_changes_its_arguments_is_replayed_with_what_it_was_given():
    class Taking(Counter):
        def add(self, numbers: list) -> str:
            while numbers:
                self._total += numbers.pop()
            return f"total {self._total}"

    def made():
        environment = Taking()
        environment.reset()
        return environment

    first = act(Point(made), Action("add", {"numbers": [1, 2]}))
    act(first.point, Action("add", {"numbers": [3]}))
    other = act(first.point, Action("add", {"numbers": [4]}))
    assert other.replayed == 1 and shown(other) == ["total 7"]


def test_a_constructor_that_fails_later_ends_branches_and_not_the_run(tiny_text):
    made = []

    def make_environment():
        made.append(1)
        if len(made) > 1:
            raise ConnectionError("no game server")
        return Echo()

    task = task_of(make_environment, "constructed")
    for _ in range(2):  # a policy a generation
        policy = policy_of(None, tiny_text, tasks={"constructed": task}, expand_num=0)
        (tree,) = ScriptedAgent(tiny_text[2], turns(SEARCH, ANSWER)).grow(policy, ["a"])
        assert policy.metrics([tree])["tool/errors/reset"][0] == 2


def test_a_constructor_that_fails_at_once_is_one_sentence(tiny_text):
    def make_environment():
        raise ConnectionError("no game server")

    with pytest.raises(ValueError, match=r"task/unmade.py: make_environment\(\) .*ConnectionError: no game server"):
        policy_of(None, tiny_text, tasks={"unmade": task_of(make_environment, "unmade")})


def test_tasks_that_cannot_be_mixed_end_a_run_before_its_first_step(one_thread, monkeypatch, tmp_path, capsys):
    """Not when the first batch holds both of them, on one process of several perhaps."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.chdir(ROOT)
    import train

    manifests = [f"metadata/demo/{name}_train.yaml" for name in ("search", "code")]
    argv = ["train.py", "--config", "config/recipes/tree_grpo_demo.yaml", f"--output_dir={tmp_path}", "--use_cpu=true"]
    monkeypatch.setattr(sys, "argv", [*argv, "--dataset_name", *manifests])
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert ended.value.code == 2 and "has no make_environment() in" in capsys.readouterr().err


def test_settings_that_an_evaluation_would_refuse_end_the_run_too(tiny_text):
    class Other(Echo):
        def reset(self, **row):
            raise ValueError("no such server")

    tasks = {name: task_of(made, name) for name, made in (("held", Other), ("echo", Echo), ("plain", None))}
    records = {name: {"id": name, "question_type": name, "question": "q", "answer": "x"} for name in tasks}
    args = SimpleNamespace(**vars(TreeGRPOFields()), max_completion_length=64, thought_end="</think>")
    module = tiny_text[0]
    check_agents(args, {}, {"echo": records["echo"]}, {"plain": records["plain"]}, tasks, module)
    with pytest.raises(ValueError, match="no such server"):
        check_agents(args, {}, {"echo": records["echo"]}, {"held": records["held"]}, tasks, module)
