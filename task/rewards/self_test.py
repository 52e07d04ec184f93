"""Scores each task's known right and wrong completion as training would, before the first rollout.

A verifier that only works on the main thread, a missing package or a sandbox that cannot start would otherwise go
unnoticed as rewards of 0 or None. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from task.errors import UserError
from task.parsing.answers import thought_tags
from task.rewards.router import TaskReward
from task.runners.optional import Unavailable
from task.task_loader import Task

RECORD_KEYS = ("id", "question", "answer", "images", "videos", "messages", "image_size", "processed_size")
PICTURE = {"image_size": (640, 480), "processed_size": (644, 476)}  # of tasks whose answers have coordinates
HIGHEST, LOWEST = 0.99, 0.01  # minimum score of a right completion, maximum of a wrong one


def check_rewards(tasks: Iterable[Task]) -> None:
    """`run_self_test` of each task.

    Raises:
        Unavailable: the first package or service that is missing.
        UserError: a reward that scores its own file's examples wrongly; the message names the file and the scores.
    """
    for task in tasks:
        run_self_test(task)


def run_self_test(task: Task) -> tuple[float, float] | None:
    """(accuracy of the right answer, accuracy of the wrong one) through the reward router; None without a SELF_TEST.

    SELF_TEST["record"] holds `answer`; `image_size` and `processed_size` describe a picture (default: 640x480,
    processed to 644x476, if the task has coordinates); unknown keys are put into the record's `extra`. Both completions
    must be well formed: the wrong one has a wrong answer.
    """
    if task.self_test is None:
        return None
    record = _record(task)
    sizes = (PICTURE if task.config["frame"] != "none" else {}) | task.self_test["record"]
    start, end = thought_tags(task.thought_end)
    completions = [task.self_test[key].replace("<think>", start).replace("</think>", end) for key in ("right", "wrong")]
    scores = []
    for kind in ("format", "accuracy"):
        own = replace(task, coordinate_frame="processed")  # the examples are written for the sizes above
        reward = TaskReward(kind, {task.name: own}, on_reward_error="raise")
        columns = {
            "record": [json.dumps(record)] * 2,
            "image_sizes": [[sizes["image_size"]]] * 2 if "image_size" in sizes else None,
            "processed_sizes": [[sizes["processed_size"]]] * 2 if "processed_size" in sizes else None,
        }
        try:
            scores.append(reward(prompts=[""] * 2, completions=completions, **columns))
        except UserError as error:
            cause = error.__cause__
            if isinstance(cause, UserError):  # a sentence of its own, with its own way out
                kind = type(cause) if isinstance(cause, Unavailable) else UserError
                raise kind(f"{task.path}: {cause}") from error
            raise
    _judge(task, *scores, completions)
    return tuple(scores[1])


def _judge(task: Task, forms: list, values: list, completions: list[str]) -> None:
    wanted = f"right must score at least {HIGHEST}, wrong at most {LOWEST}, both well formed (format 1.0)"
    good = None not in values and values[0] >= HIGHEST and values[1] <= LOWEST and forms == [1.0, 1.0]
    if not good:
        raise UserError(
            f"{task.path}: the rewards fail their SELF_TEST: right and wrong score accuracy {values} and format "
            f"{forms}, but {wanted}{_unread(task, completions)}: repair the rewards, or the examples."
        )


def _unread(task: Task, completions: list[str]) -> str:
    """Which examples hold no answer for the task's parse_answer; '' if it reads both, or cannot be called alone."""
    if task.parse_answer is None:
        return ""
    try:
        read = [task.parse_answer(text, thought_end=task.thought_end) for text in completions]
    except Exception:  # it may read keywords that only a record has
        return ""
    lost = [name for name, answer in zip(("right", "wrong"), read, strict=True) if answer is None]
    return f" (parse_answer finds no answer in {' or '.join(lost)})" if lost else ""


def _record(task: Task) -> dict:
    given = task.self_test["record"]
    return {
        "id": given.get("id", "self-test"),
        "question_type": task.name,
        "question": given.get("question", "?"),
        "answer": given["answer"],
        "images": given.get("images", []),
        "videos": given.get("videos", []),
        "messages": [],
        "extra": {key: value for key, value in given.items() if key not in RECORD_KEYS},
    }
