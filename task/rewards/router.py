"""Routes each completion to the rewards of its task, and converts their results to one number or None per completion.

Two callables for TRL's `reward_funcs`: "format_reward" and "accuracy_reward". None means abstain: the row does not
count for that function. A reward that fails on a completion abstains and is counted, and the first failure is printed;
a reward that breaks the contract stops the run with an error that names its file. An accuracy_reward that is `async
def` is called for several completions at a time. Imports no torch.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from numbers import Real

from task.errors import UserError, place_of
from task.rewards.frames import frame_size, model_plane
from task.rewards.given_answer import given_answer
from task.rewards.time_limit import RewardTimeout, time_limit
from task.runners.event_loop import all_awaited
from task.task_loader import Task, get_task

KINDS = ("format", "accuracy")
ON_REWARD_ERROR = ("abstain", "raise")
AT_ONCE = 16  # calls of an async reward


class RewardError(UserError, TypeError):
    """A reward whose result breaks the contract; the message names its file or function."""


def task_rewards(
    tasks: dict[str, Task],
    on_reward_error: str = "abstain",
    timeout: float | None = None,
) -> list[TaskReward]:
    """[format reward, accuracy reward] over all tasks, in the order of `KINDS`."""
    return [TaskReward(kind, tasks, on_reward_error, timeout) for kind in KINDS]


def reward_arguments(task: Task, record: dict, image_size, processed_size) -> tuple:
    """(sol, keywords): the arguments of a task's functions for a record, in training and in evaluation.

    `sol` is the record's answer in the task's frame; without a picture it is the answer unchanged, except that JSON
    text is parsed if the task needs it (`given_answer`). Where that frame is the model's, the keyword
    `processed_size` is its plane (`model_plane`).
    Sizes are (width, height) of the first picture or None. UserError, naming the record, if process_answer fails.
    """
    image_size = None if image_size is None else tuple(image_size)
    processed_size = model_plane(task, None if processed_size is None else tuple(processed_size))
    sol = given_answer(task, record.get("answer"))
    target = frame_size(task.config["frame"], image_size, processed_size)
    if task.process_answer is not None and sol is not None and target is not None:
        sol = _moved(task, sol, record.get("id"), image_size, target)
    keywords = {
        "id": record.get("id"),
        "question_type": record["question_type"],
        "image_size": image_size,
        "processed_size": processed_size,
        "record": record,
        "thought_end": task.thought_end,
    }
    return sol, keywords


def _moved(task: Task, answer, record_id, image_size, target):
    try:
        return task.process_answer(answer, image_size, target)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if task.is_own:
            where = f"{place_of(error, task.path)}: process_answer fails on the answer of record {record_id!r}"
            raise UserError(f"{where} ({reason}): correct the task or the record.") from error
        where = f"record {record_id!r}: process_answer of {task.path} fails on its answer"
        raise UserError(f"{where} ({reason}): correct the record or the task.") from error


class TaskReward:
    """One of the two reward functions that TRL calls.

    Args:
        kind: "format" or "accuracy".
        tasks: from `task.task_loader.load_tasks`.
        on_reward_error: the effect of a reward that raises: "abstain" (None, counted) or "raise" (with the record's
            id).
        timeout: seconds one call may take (`time_limit`); beyond it the reward counts as one that raises.
    """

    def __init__(
        self,
        kind: str,
        tasks: dict[str, Task],
        on_reward_error: str = "abstain",
        timeout: float | None = None,
    ):
        assert kind in KINDS, kind
        if on_reward_error not in ON_REWARD_ERROR:
            raise UserError(f"on_reward_error {on_reward_error!r}: choose one of {', '.join(ON_REWARD_ERROR)}.")
        self.kind = kind
        self.tasks = tasks
        self.on_reward_error = on_reward_error
        self.timeout = timeout
        self.__name__ = f"{kind}_reward"
        self._columns: set[str] = set()
        self._no_metrics: set[str] = set()  # extras that were reported, since they are no numbers
        self.first_error: str | None = None  # in words, for the end of the run

    def __call__(
        self,
        prompts: Sequence | None = None,
        completions: Sequence = (),
        record: Sequence[str] = (),
        image_sizes: Sequence | None = None,
        processed_sizes: Sequence | None = None,
        failed: Sequence[bool] | None = None,
        log_extra: Callable | None = None,
        log_metric: Callable | None = None,
        **_,
    ) -> list[float | None]:
        """One value or None per completion.

        Args:
            completions: texts, or message lists whose last content counts.
            record: the row's JSON string, one per completion.
            image_sizes, processed_sizes: lists of (width, height) per completion, as `EncodedPrompt` holds them.
            failed: whether the rollout could not be generated; such rows get None.
            log_extra, log_metric: TRL's hooks; the extras of the accuracy reward become metrics and table columns, and
                the mean of each task is logged as rewards/TASK/format and rewards/TASK/accuracy.
        """
        total = len(completions)
        nothing: list = [None] * total
        columns = (record, image_sizes or nothing, processed_sizes or nothing, failed or nothing)
        assert all(len(column) == total for column in columns), (self.__name__, total, [len(c) for c in columns])

        counts = {"failed": 0, "timeout": 0, "non_finite": 0}
        records = [json.loads(row) for row in record]
        results = [
            None if lost else self._called(text, parsed, _first(sizes), _first(processed))
            for text, parsed, sizes, processed, lost in zip(map(_text, completions), records, *columns[1:], strict=True)
        ]
        waiting = [i for i, result in enumerate(results) if inspect.isawaitable(result)]
        for i, result in zip(waiting, self._all_awaited([results[i] for i in waiting]), strict=True):
            results[i] = result
        rewards, extras, by_task = [], [], defaultdict(list)
        for parsed, result, lost in zip(records, results, columns[-1], strict=True):
            value, extra = (None, {}) if lost else self._scored(result, parsed)
            values = by_task[parsed["question_type"]]
            if value in counts:
                counts[value] += 1
                value = None
            values += [] if value is None else [value]
            rewards.append(value)
            extras.append(extra)
        if log_metric is not None:
            for name, count in counts.items():
                log_metric(f"rewards/{self.__name__}/{name}", float(count))
            own = {f"rewards/{name}/{self.kind}": values for name, values in by_task.items()}
            for name, values in [*self._numbers(extras).items(), *own.items()]:
                for value in values:  # one by one, so that the mean is over completions, not over processes
                    log_metric(name, value)
        if log_extra is not None and self.kind == "accuracy":
            # A column that was logged once is always logged, so that all columns of TRL's table have the same length.
            self._columns.update(name for extra in extras for name in extra)
            for name in sorted(self._columns):
                log_extra(name, [extra.get(name) for extra in extras])
        return rewards

    def _called(self, completion: str, record: dict, image_size, processed_size):
        """What the task's reward returned (an awaitable, if it is async), or the exception it raised."""
        task = get_task(record["question_type"], self.tasks)
        reward = task.format_reward if self.kind == "format" else task.accuracy_reward
        try:
            sol, keywords = reward_arguments(task, record, image_size, processed_size)
            with time_limit(self.timeout):
                return reward(completion, sol, **keywords)
        except RewardTimeout:
            return TimeoutError(self._too_late())
        except (Exception, SystemExit) as error:
            return error

    def _all_awaited(self, waiting: list) -> list:
        """The results of async calls, or the exceptions they raised."""
        results = all_awaited(waiting, AT_ONCE, self.timeout) if waiting else []
        silent = [isinstance(one, TimeoutError) and not one.args for one in results]  # the limit's own
        return [TimeoutError(self._too_late()) if late else one for one, late in zip(results, silent, strict=True)]

    def _too_late(self) -> str:
        return "no answer" if self.timeout is None else f"no answer within reward_timeout={self.timeout:g} s"

    def _scored(self, result, record: dict) -> tuple[float | str | None, dict]:
        """(value, extras) of the result of one call; without a usable value, a key of `counts` instead."""
        task = get_task(record["question_type"], self.tasks)
        if isinstance(result, BaseException):
            self._report(task, record, result)
            return ("timeout" if isinstance(result, TimeoutError) else "failed"), {}
        value, extra = self._checked(result, task)
        finite = value is None or math.isfinite(value)
        return value if finite else "non_finite", {f"{task.name}/{key}": number for key, number in extra.items()}

    def _checked(self, result, task: Task) -> tuple[float | None, dict]:
        """(value, extras) of a reward's result; RewardError that names the task's file if it breaks the contract."""
        rule = "0.0, 1.0 or None" if self.kind == "format" else "a float, (float, dict) or None"
        extra = {}
        if self.kind == "accuracy" and isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            result, extra = result
        result = plain_bool(result)
        allowed = result is None or isinstance(result, Real)
        if self.kind == "format" and allowed and result is not None:
            allowed = result in (0, 1) or not math.isfinite(as_float(result))
        if not allowed:
            raise RewardError(
                f"{task.path}: {self.__name__} returned {shown(result)} for one completion: return {rule}, "
                f"one value per call."
            )
        return (None if result is None else as_float(result)), extra

    def _numbers(self, extras: list[dict]) -> dict[str, list[float]]:
        """The finite numbers of all extras, by name; the first value of a name that is neither a number nor None is
        reported."""
        found = defaultdict(list)
        for extra in extras:
            for name, value in extra.items():
                value = plain_bool(value)
                if isinstance(value, Real):
                    found[name] += [as_float(value)] if math.isfinite(as_float(value)) else []
                elif value is not None and name not in self._no_metrics:
                    self._no_metrics.add(name)
                    print(
                        f"{self.tasks[name.partition('/')[0]].path}: {self.__name__} gave {shown(value)} as "
                        f"{name.partition('/')[2]!r}, which is no number: it is a column of the table of completions "
                        "alone, not a metric",
                        file=sys.stderr,
                    )
        return found

    def _report(self, task: Task, record: dict, error: BaseException) -> None:
        where = f"{place_of(error, task.path)}: {self.__name__} failed on record {record.get('id')!r}"
        if self.on_reward_error == "raise":
            raise UserError(
                f"{where} ({type(error).__name__}: {error}): a reward must not raise on any completion: repair it."
            ) from error
        if self.first_error is None:
            self.first_error = f"{where}: {type(error).__name__}: {error}"
            print(f"{where}; such completions get None and are counted; the first error:", file=sys.stderr)
            traceback.print_exception(error)


def _text(completion) -> str:
    """The completion as text: a string, or the last content of a list of messages."""
    if isinstance(completion, str):
        return completion
    content = completion[-1]["content"] if completion else ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _first(sizes):
    return sizes[0] if sizes else None


def plain_bool(value):
    """A bool of NumPy as Python's, which is a number; any other value unchanged."""
    is_numpys = type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
    return bool(value) if is_numpys else value


def as_float(value: Real) -> float:
    """The number as a float; infinite for an integer or fraction that is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def shown(value) -> str:
    size = f" of {len(value)}" if isinstance(value, list | tuple | dict | str) else ""
    text = " ".join(repr(value).split())
    return f"a {type(value).__name__}{size} ({text if len(text) <= 60 else text[:57] + '...'})"
