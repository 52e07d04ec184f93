"""A record and its task -> the user turn: the template with the question, and the places of the media.

A question may place its media: `<image>` and `<video>` are slots, filled in order. Either every medium has a slot or
none has; without slots all media come before the text. For the literal words, put a backslash before them:
`\\<image>`. Other markers, such as ShareRobot's `<image 0-25>`, are plain text.
"""

from __future__ import annotations

import functools
import re

from task.agents.environment import tools_of
from task.errors import UserError
from task.parsing.answers import thought_tags
from task.rewards.frames import check_unit, with_unit

SLOT = re.compile(r"(?<!\\)<(image|video)>")
ESCAPED = re.compile(r"\\(<(?:image|video)>)")


def render_question(task, question: str) -> str:
    """The text of the user turn: the task's template with the question, this run's thought tags and unit.

    >>> from types import SimpleNamespace
    >>> task = SimpleNamespace(
    ...     config={"grpo_template": "{Question} Think inside <think> </think>."}, thought_end="</analysis>"
    ... )
    >>> render_question(task, "How many?")
    'How many? Think inside <analysis> </analysis>.'
    """
    return _worded(task.config["grpo_template"], task).replace("{Question}", question)


def build_messages(record: dict, task) -> list[dict]:
    """Chat messages with typed parts: the task's system prompt, if it has one, then the user turn.

    Parts are {"type": "text", "text": str} and {"type": "image" | "video", "index": int}, the index counting in
    `record["images"]` and `record["videos"]`. If the task's environment uses the chat template's tool calls, the first
    message has the tool schemas under "tools".

    Raises:
        UserError: the question has slots, but not exactly one per medium, or the prompt does not ask for coordinates in
            the frame in which they are scored.
    """
    check_unit(task)
    content = [] if _has_slots(record, "image") else _media(record, "image")
    content += [] if _has_slots(record, "video") else _media(record, "video")
    before, after = _worded(task.config["grpo_template"], task).split("{Question}")
    content += _text(before) + _question_parts(record["question"]) + _text(after)
    messages = [{"role": "user", "content": _join_texts(content)}]
    system = task.config.get("system_prompt")
    if system:
        messages.insert(0, {"role": "system", "content": _text(_worded(system, task))})
    tools = tool_schemas(getattr(task, "make_environment", None))
    return [messages[0] | {"tools": tools}, *messages[1:]] if tools else messages


@functools.cache
def tool_schemas(make_environment) -> list[dict] | None:
    """JSON schemas of the tools of an environment that uses the chat template's tool calls; None for any other.

    Raises UserError for an environment that cannot be created, and for a tool without a schema: it needs type hints
    and a docstring with an `Args:` section.
    """
    try:
        environment = make_environment() if make_environment is not None else None
    except Exception as error:
        raise UserError(
            f"make_environment() of {make_environment.__module__} fails ({type(error).__name__}: {error}): correct it"
        ) from error
    if getattr(environment, "action_form", "tags") != "tool_calls":
        return None
    from transformers.utils import get_json_schema

    schemas = []
    for name, tool in tools_of(environment).items():
        try:
            schemas.append(get_json_schema(tool))
        except Exception as error:  # exception types of its own
            raise UserError(
                f"the tool {name} of {type(environment).__name__} cannot be described to a model ({error}): give it "
                "type hints and a docstring with an `Args:` section"
            ) from error
    return schemas


def _has_slots(record: dict, kind: str) -> bool:
    """Whether the question has slots for its media of this kind."""
    media, slots = len(record[f"{kind}s"]), SLOT.findall(record["question"]).count(kind)
    if slots not in (0, media):
        raise UserError(
            f"the question has {slots} slot(s) <{kind}> but the record has {media} {kind}(s): give as many as there "
            f"are slots, or write no slot (media then come before the text); for the literal word write \\<{kind}>."
        )
    return slots > 0


def _media(record: dict, kind: str) -> list[dict]:
    return [{"type": kind, "index": index} for index in range(len(record[f"{kind}s"]))]


def _question_parts(question: str) -> list[dict]:
    """The texts and media of a question, in order: "<image> or <image>?" -> image 0, " or ", image 1, "?"."""
    parts = []
    used = {"image": 0, "video": 0}
    for number, piece in enumerate(SLOT.split(question)):
        if number % 2:
            parts.append({"type": piece, "index": used[piece]})
            used[piece] += 1
        else:
            parts += _text(ESCAPED.sub(r"\1", piece))
    return parts


def _text(text: str) -> list[dict]:
    return [{"type": "text", "text": text}] if text else []


def _join_texts(parts: list[dict]) -> list[dict]:
    """Merges adjacent texts into one part, so that they are tokenised as one text."""
    joined: list[dict] = []
    for part in parts:
        if part["type"] == "text" and joined and joined[-1]["type"] == "text":
            joined[-1] = {"type": "text", "text": joined[-1]["text"] + part["text"]}
        else:
            joined.append(part)
    return joined


def _worded(template: str, task) -> str:
    """The template with this run's thought tags and unit of coordinates; applied before the question is inserted."""
    opening, closing = thought_tags(task.thought_end)
    return with_unit(template.replace("</think>", closing).replace("<think>", opening), task)
