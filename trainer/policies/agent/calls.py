"""Tool calls in a tree of rollouts: time-limited, made once per point of the tree, each on its own environment state.

A `Point` is a place in a tree at which an agent can act. Acting never changes the point: the calls run on a fork of its
environment. If that has no `_fork`, the first action takes the environment itself, and later ones get an environment
rebuilt by replaying the path. Identical calls at the same point are made once, and their results are reused.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from task.agents.environment import tools_of
from task.runners.event_loop import awaited
from trainer.policies.agent.arguments import bind_arguments
from trainer.policies.agent.forms import Action

# Failures of the infrastructure, which end a branch; the model cannot react to them.
FAILURES = (
    "timeout", "refused", "bad_json", "bad_shape", "too_large", "http_500", "http_400", "io", "reset", "fork",
    "replay_mismatch", "turn_reward", "encoding", "exception", "other",
)  # fmt: skip
# Faults that are reported to the model, which can react to them.
FAULTS = ("unknown_tool", "bad_arguments", "raised")
MAX_MESSAGE = 300  # characters of an exception that the model is shown


class ToolFailure(Exception):
    """A call that could not be made; `kind` is one of FAILURES."""

    def __init__(self, kind: str, sentence: str = ""):
        super().__init__(sentence)
        self.kind = kind if kind in FAILURES else "other"


@dataclass(frozen=True)
class CallResults:
    """Results of one turn's calls: content parts per call, the point after them, faults, replayed calls, its reward."""

    results: list[list[dict]]
    point: Point
    faults: list[str] = field(default_factory=list)
    replayed: int = 0
    reward: float = 0.0


class Point:
    """A place at which an agent can act.

    Args:
        make: returns a new environment whose episode has been started.
        parent: the preceding point, None at the prompt.
        actions, results: what led from the parent to this point.
        environment: in the state of this point; None if it was not made yet or has been handed on.
    """

    def __init__(self, make: Callable[[], Any], parent=None, actions=(), results=(), environment=None):
        self.make, self.parent, self.actions, self.results = make, parent, actions, results
        self._environment, self._started = environment, environment is not None
        self._environment_lock = threading.Lock()  # separate: a hanging fork must not block cache lookups
        self._cache_lock = threading.Lock()
        self._cache: dict[str, Future] = {}

    def act(self, actions: tuple[Action, ...], seconds: float) -> tuple[CallResults, bool]:
        """(results, whether the calls were made now rather than reused), within a time limit; raises ToolFailure."""
        key = json.dumps([[action.tool, action.arguments] for action in actions], sort_keys=True, default=str)
        with self._cache_lock:
            known = self._cache.get(key)
            future = known or self._cache.setdefault(key, Future())
        if known is not None:
            try:
                return known.result(seconds), False
            except TimeoutError as error:  # a timeout of the call itself is one too
                raise ToolFailure("timeout") from error
        try:
            results = within(seconds, lambda: self._perform(actions))
        except BaseException as error:
            with self._cache_lock:
                del self._cache[key]  # failures are not cached, so the next attempt may succeed
            future.set_exception(error)
            raise
        future.set_result(results)
        return results, True

    def _perform(self, actions: tuple[Action, ...]) -> CallResults:
        environment, replayed = self._own_environment()
        results, faults = perform(environment, actions)
        reward = turn_reward(environment)
        return CallResults(results, Point(self.make, self, actions, results, environment), faults, replayed, reward)

    def _own_environment(self) -> tuple[Any, int]:
        """(an environment in the state of this point for exclusive use, number of calls replayed for it)."""
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
            if not same_results(results, point.results):
                raise ToolFailure("replay_mismatch", f"{point.actions} gave a different result when replayed")
        return environment, calls


def perform(environment: Any, actions: tuple[Action, ...]) -> tuple[list[list[dict]], list[str]]:
    """(content parts of each call, kinds of FAULTS among them), calls run in order; raises ToolFailure."""
    results, faults = [], []
    for action in actions:
        result, fault = call(environment, action)
        results.append(result)
        faults += [fault] if fault else []
    return results, faults


def turn_reward(environment: Any) -> float:
    """What the environment gives for the turn whose calls were just made; 0 if it has no `_turn_reward`."""
    if not hasattr(environment, "_turn_reward"):
        return 0.0
    try:
        reward = float(environment._turn_reward())
    except Exception as error:
        raise ToolFailure("turn_reward", f"_turn_reward() fails: {type(error).__name__}: {error}") from error
    if not math.isfinite(reward):
        raise ToolFailure("turn_reward", f"_turn_reward() returned {reward}: a finite number is needed")
    return reward


def call(environment: Any, action: Action) -> tuple[list[dict], str | None]:
    """(content parts, None or a kind of FAULTS) of one tool call; raises ToolFailure if the infrastructure fails."""
    tools = tools_of(environment)
    if action.tool not in tools:
        names = ", ".join(tools)
        return _text(f"Error: there is no tool {action.tool[:50]!r}; the tools are {names}."), "unknown_tool"
    tool = tools[action.tool]
    try:
        arguments = bind_arguments(tool, action.arguments)
    except (TypeError, ValueError) as error:
        return _text(f"Error: {action.tool} cannot be called so: {error}"[:MAX_MESSAGE]), "bad_arguments"
    try:
        value = tool(**copy.deepcopy(arguments))  # a tool may modify them, and a replay needs the originals
        return parts_of(awaited(value) if inspect.isawaitable(value) else value), None
    except BaseException as error:  # interrupts too come from the tool: it runs in its own thread
        if isinstance(kind := getattr(error, "kind", None), str):
            raise ToolFailure(kind, str(error)) from error
        if isinstance(error, OSError):
            known = {TimeoutError: "timeout", ConnectionError: "refused"}
            kind = next((name for type_, name in known.items() if isinstance(error, type_)), "io")
            raise ToolFailure(kind, str(error)) from error
        return _text(f"Error: {type(error).__name__}: {error}"[:MAX_MESSAGE]), "raised"


def parts_of(value: Any) -> list[dict]:
    """What a tool returned as content parts {"type": "text", "text"} and {"type": "image", "image": RGB picture}.

    In a list or tuple with parts or pictures, strings are parts as well.
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


def same_results(left: list[list[dict]], right: list[list[dict]]) -> bool:
    """Whether two lists of results have equal content."""
    return [_shown(part) for result in left for part in result] == [_shown(part) for result in right for part in result]


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """`function()` in its own thread; ToolFailure "timeout" if it takes longer (it then runs on in the background)."""
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
