"""The answer of a record as its task wants it, whatever a table or a chat format has made of it."""

from __future__ import annotations

import json

from task.errors import UserError


def given_answer(task, answer):
    """A record's answer; JSON text of a list or an object is read where the task wants one.

    That is a task with coordinates (its frame is not "none"), or one whose SELF_TEST has an object for an answer. To
    other tasks a text is a text.

    >>> from types import SimpleNamespace
    >>> boxes = SimpleNamespace(config={"frame": "processed"}, self_test=None)
    >>> given_answer(boxes, "[120, 48, 256, 220]"), given_answer(boxes, "the second one")
    ([120, 48, 256, 220], 'the second one')
    """
    if not isinstance(answer, str) or not _wants_json(task):
        return answer
    try:
        value = json.loads(answer, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return answer  # the task says what it wants
    return value if isinstance(value, list | dict) else answer


def _wants_json(task) -> bool:
    if task.config.get("frame", "none") != "none":
        return True
    test = getattr(task, "self_test", None)
    return test is not None and isinstance(test["record"]["answer"], dict)


def _refuse(name: str):
    raise UserError(f"{name} is no number")
