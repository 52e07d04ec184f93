"""A user's own reward functions in TRL's form: loaded by name, given parsed records, and held to one number per row."""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from numbers import Real
from pathlib import Path

from task.errors import UserError, place_of
from task.rewards.router import RewardError, TaskReward, as_float, plain_bool, shown
from task.rewards.time_limit import RewardTimeout, time_limit


class CheckedReward:
    """A user's own reward function, given each row's `record` as a dict and checked to return one number or None per
    completion.

    TRL itself checks only the length; tensors or strings would cause an error that does not name the function.
    """

    def __init__(self, function: Callable, timeout: float | None = None):
        self.function, self.timeout = function, timeout
        inner = function.func if isinstance(function, partial) else function
        self.__name__ = getattr(inner, "__name__", type(inner).__name__)

    def __call__(self, prompts, completions, **keywords) -> list[float | None]:
        try:
            with time_limit(self.timeout):
                values = self.function(prompts=prompts, completions=completions, **with_records(keywords))
        except RewardTimeout:
            log_metric = keywords.get("log_metric") or (lambda *metric: None)
            log_metric(f"rewards/{self.__name__}/timeout", float(len(completions)))
            print(
                f"reward function {self.__name__}: no answer within reward_timeout={self.timeout:g} s", file=sys.stderr
            )
            return [None] * len(completions)
        except Exception as error:
            raise self.failure(error, len(completions)) from error
        return self.checked(values, len(completions))

    def failure(self, error: Exception, number: int) -> UserError:
        """The error of the function in one sentence; a UserError is one already."""
        if isinstance(error, UserError):
            return error
        what = f"failed on {number} completions ({type(error).__name__}: {' '.join(str(error).split())})"
        inside = error.__traceback__.tb_next  # None if the call itself does not fit the function
        if inside is None:
            return RewardError(
                f"reward function {self.__name__} {what}: take completions, and **keywords for the rest."
            )
        place = place_of(error, Path(inside.tb_frame.f_code.co_filename))
        return RewardError(
            f"{place}: reward function {self.__name__} {what}: repair it, or return None for a completion that it "
            "does not apply to."
        )

    def checked(self, values, number: int) -> list[float | None]:
        """The function's result with None for what is not finite. RewardError if it is not one number per row."""
        good = isinstance(values, list | tuple) and len(values) == number
        values = [plain_bool(value) for value in values] if good else values
        if not good or not all(value is None or isinstance(value, Real) for value in values):
            raise RewardError(
                f"reward function {self.__name__} returned {shown(values)} for {number} completions: "
                f"return a list with one float or None for each."
            )
        values = [None if value is None else as_float(value) for value in values]
        return [value if value is not None and math.isfinite(value) else None for value in values]


class AsyncReward(CheckedReward):
    """The same for a function that TRL awaits, together with the others of its kind; it has no time limit."""

    async def __call__(self, prompts, completions, **keywords) -> list[float | None]:
        try:
            values = await self.function(prompts=prompts, completions=completions, **with_records(keywords))
        except Exception as error:
            raise self.failure(error, len(completions)) from error
        return self.checked(values, len(completions))


def with_records(keywords: dict) -> dict:
    """The keywords of a reward with `record` parsed; rows with the same record share one dict."""
    rows = keywords.get("record")
    if rows is None:
        return keywords
    parsed = {row: json.loads(row) for row in set(rows) if isinstance(row, str)}
    return keywords | {"record": [parsed.get(row, row) if isinstance(row, str) else row for row in rows]}


def checked_rewards(functions, timeout: float | None = None) -> list:
    """The reward functions for TRL; a user's own, plain or asynchronous, are wrapped. Reward models stay as they are.

    `timeout`: seconds that a plain function may take for all completions; beyond it all of them get None.
    """
    functions = functions if isinstance(functions, list) else [functions]
    return [_wrapped(function, timeout) for function in functions]


def _wrapped(function, timeout: float | None):
    is_model = any(base.__module__.startswith("torch.nn.") for base in type(function).__mro__)
    if isinstance(function, TaskReward | CheckedReward) or is_model or not callable(function):
        return function
    inner = function.func if isinstance(function, partial) else function
    waits = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)
    return AsyncReward(function) if waits else CheckedReward(function, timeout)


def load_rewards(names: list[str]) -> list[Callable]:
    """The functions that `--extra_reward MODULE:FUNCTION ...` names; modules may lie in the working folder.

    Raises UserError for a name of another form, and for a module or function that cannot be loaded.
    """
    if names and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return [_load(name) for name in names]


def _load(name: str) -> Callable:
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise UserError(f"extra_reward {name!r} must be MODULE:FUNCTION, such as my_rewards:brevity")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.split(".")[: error.name.count(".") + 1] == error.name.split("."):
            raise UserError(
                f"extra_reward {name!r}: there is no module {error.name} in {Path.cwd()}, in --task_dir or among the "
                "installed packages"
            ) from error
        raise UserError(f"extra_reward {name!r}: {module_name} cannot be imported ({error})") from error
    except Exception as error:
        where = getattr(importlib.util.find_spec(module_name), "origin", None) or module_name
        raise UserError(
            f"extra_reward {name!r}: {place_of(error, Path(where))} fails ({type(error).__name__}: {error})"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [known for known, value in vars(module).items() if callable(value)]
        near = difflib.get_close_matches(function_name, functions, n=1)
        meant = f": did you mean {near[0]}?" if near else ""
        raise UserError(f"extra_reward {name!r}: {module.__file__} has no function {function_name}{meant}")
    return function
