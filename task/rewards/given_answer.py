"""Reads an answer that a table or a chat format stores as JSON text, for tasks that need numbers or an object."""

from __future__ import annotations

import json

from task.errors import UserError


def given_answer(task, answer):
    """A record's answer, parsed if it is JSON text of a list or an object and the task needs one.

    A task needs one if it has coordinates (its frame is not "none"), or if the answer in its SELF_TEST is an object.
    For all other tasks a text stays a text, and so does text that is not valid JSON.

    >>> from types import SimpleNamespace
    >>> boxes = SimpleNamespace(config={"frame": "processed"}, self_test=None)
    >>> given_answer(boxes, "[120, 48, 256, 220]"), given_answer(boxes, "the second one")
    ([120, 48, 256, 220], 'the second one')
    """
    if not isinstance(answer, str) or not _needs_json(task):
        return answer
    try:
        value = json.loads(answer, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return answer  # the task's own error names the form it needs
    return value if isinstance(value, list | dict) else answer


def _needs_json(task) -> bool:
    if task.config.get("frame", "none") != "none":
        return True
    test = getattr(task, "self_test", None)
    return test is not None and isinstance(test["record"]["answer"], dict)


def _refuse(name: str):
    raise UserError(f"{name} is not a number")
