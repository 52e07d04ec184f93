"""Tool calls of a tree of rollouts: with a time limit, each paid once at each point, on a state of its own.

A `Point` is a place in a tree at which an agent can act. Acting at it never changes it: the calls run on a fork of its
environment or, where that has no `_fork`, on the one environment (the first to come) or on one rebuilt by replaying
the path (all others). The same calls at the same point are made once; whoever comes second gets what they returned.
"""

from __future__ import annotations

import copy
import inspect
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from task.agents.environment import tools_of
from trainer.policies.agent.arguments import bound
from trainer.policies.agent.async_tools import awaited
from trainer.policies.agent.forms import Action

# What ends a branch: the machinery failed, and the model could do nothing about it.
FAILURES = (
    "timeout", "refused", "bad_json", "bad_shape", "too_large", "http_500", "http_400", "io", "reset", "fork",
    "replay_mismatch", "encoding", "exception", "other",
)  # fmt: skip
# What the model is told and can react to.
FAULTS = ("unknown_tool", "bad_arguments", "raised")
MAX_MESSAGE = 300  # characters of an exception the model is shown


class ToolFailure(Exception):
    """A call that could not be made; `kind` is one of FAILURES."""

    def __init__(self, kind: str, sentence: str = ""):
        super().__init__(sentence)
        self.kind = kind if kind in FAILURES else "other"


@dataclass(frozen=True)
class CallResults:
    """What the calls of one turn gave: per call a list of content parts, the point after, and what was counted."""

    results: list[list[dict]]
    point: Point
    faults: list[str] = field(default_factory=list)
    replayed: int = 0


class Point:
    """A place at which an agent can act.

    Args:
        make: gives a fresh environment whose episode has been started.
        parent: the point before, None at the prompt.
        actions, results: what led here from there.
        environment: in the state of this point; None: not made yet, or handed to somebody.
    """

    def __init__(self, make: Callable[[], Any], parent=None, actions=(), results=(), environment=None):
        self.make, self.parent, self.actions, self.results = make, parent, actions, results
        self._environment, self._started = environment, environment is not None
        self._environment_lock = threading.Lock()  # apart, for a fork that hangs must hold up no one that only looks
        self._cache_lock = threading.Lock()
        self._cache: dict[str, Future] = {}

    def act(self, actions: tuple[Action, ...], seconds: float) -> tuple[CallResults, bool]:
        """(what the calls gave, whether they were made for this turn) within a time limit; raises ToolFailure."""
        key = json.dumps([[action.tool, action.arguments] for action in actions], sort_keys=True, default=str)
        with self._cache_lock:
            known = self._cache.get(key)
            future = known or self._cache.setdefault(key, Future())
        if known is not None:
            try:
                return known.result(seconds), False
            except TimeoutError as error:  # also what a call itself timed out with
                raise ToolFailure("timeout") from error
        try:
            results = within(seconds, lambda: self._perform(actions))
        except BaseException as error:
            with self._cache_lock:
                del self._cache[key]  # a failure is not kept: the next may be luckier
            future.set_exception(error)
            raise
        future.set_result(results)
        return results, True

    def _perform(self, actions: tuple[Action, ...]) -> CallResults:
        environment, replayed = self._own_environment()
        results, faults = perform(environment, actions)
        return CallResults(results, Point(self.make, self, actions, results, environment), faults, replayed)

    def _own_environment(self) -> tuple[Any, int]:
        """(an environment in the state of this point that nobody else holds, how many calls were replayed for it)."""
        with self._environment_lock:
            if self.parent is None and not self._started:
                self._environment, self._started = self.make(), True
            held = self._environment
            if held is not None and hasattr(held, "_fork"):
                try:
                    return held._fork(), 0
                except BaseException as error:
                    raise ToolFailure("fork", str(error)) from error
            self._environment = None
        return (held, 0) if held is not None else self._replay()

    def _replay(self) -> tuple[Any, int]:
        path, point = [], self
        while point.parent is not None:
            path.append(point)
            point = point.parent
        environment, calls = self.make(), 0
        for point in reversed(path):
            results, _ = perform(environment, point.actions)
            calls += len(point.actions)
            if not same(results, point.results):
                raise ToolFailure("replay_mismatch", f"{point.actions} gave another result when it was replayed")
        return environment, calls


def perform(environment: Any, actions: tuple[Action, ...]) -> tuple[list[list[dict]], list[str]]:
    """(content parts of each call, kinds of FAULTS among them), one call after another; raises ToolFailure."""
    results, faults = [], []
    for action in actions:
        result, fault = call(environment, action)
        results.append(result)
        faults += [fault] if fault else []
    return results, faults


def call(environment: Any, action: Action) -> tuple[list[dict], str | None]:
    """(content parts, None or a kind of FAULTS) of one tool call; raises ToolFailure where the machinery fails."""
    tools = tools_of(environment)
    if action.tool not in tools:
        names = ", ".join(tools)
        return _text(f"Error: there is no tool {action.tool[:50]!r}; the tools are {names}."), "unknown_tool"
    tool = tools[action.tool]
    try:
        arguments = bound(tool, action.arguments)
    except (TypeError, ValueError) as error:
        return _text(f"Error: {action.tool} cannot be called so: {error}"[:MAX_MESSAGE]), "bad_arguments"
    try:
        value = tool(**copy.deepcopy(arguments))  # a tool may change them, and a replay needs them as they were
        return parts_of(awaited(value) if inspect.isawaitable(value) else value), None
    except BaseException as error:  # an interruption too is the tool's own: it runs in a thread of its own
        if isinstance(kind := getattr(error, "kind", None), str):
            raise ToolFailure(kind, str(error)) from error
        if isinstance(error, OSError):
            known = {TimeoutError: "timeout", ConnectionError: "refused"}
            kind = next((name for type_, name in known.items() if isinstance(error, type_)), "io")
            raise ToolFailure(kind, str(error)) from error
        return _text(f"Error: {type(error).__name__}: {error}"[:MAX_MESSAGE]), "raised"


def parts_of(value: Any) -> list[dict]:
    """What a tool returned as content parts {"type": "text", "text"} and {"type": "image", "image": RGB picture}.

    Of a list or tuple that has parts or pictures, texts too are parts.
    """
    several = isinstance(value, list | tuple) and any(map(_is_part, value))
    values = value if several and all(_is_part(one) or isinstance(one, str) for one in value) else [value]
    parts = []
    for one in values:
        if hasattr(one, "convert") and hasattr(one, "size"):
            one = {"type": "image", "image": one}
        if isinstance(one, dict) and one.get("type") == "image":
            parts.append({"type": "image", "image": one["image"].convert("RGB")})
        elif isinstance(one, dict) and one.get("type") == "text":
            parts += _text(str(one["text"]))
        else:
            parts += _text(one if isinstance(one, str) else str(one))
    return parts


def same(left: list[list[dict]], right: list[list[dict]]) -> bool:
    """Whether two lists of results are the same to a reader."""
    return [_shown(part) for result in left for part in result] == [_shown(part) for result in right for part in result]


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """`function()` in a thread of its own; ToolFailure "timeout" if it takes longer (it then runs on, unheard)."""
    future: Future = Future()

    def run():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="tool call", daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError as error:
        raise ToolFailure("timeout", f"no answer within {seconds} s") from error


def _is_part(value: Any) -> bool:
    return hasattr(value, "convert") or (isinstance(value, dict) and value.get("type") in ("text", "image"))


def _shown(part: dict):
    return part["text"] if part["type"] == "text" else (part["image"].size, part["image"].tobytes())


def _text(text: str) -> list[dict]:
    return [{"type": "text", "text": text}]
