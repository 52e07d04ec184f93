"""Conversations in the format of LLaVA and VLM-R1, which many data sets use.

{"id", "image": path or list of paths, "conversations": [{"from": "human", "value"}, {"from": "gpt", "value"}, ...]};
VLM-R1 also {"problem", "solution"}. --question_type names the task. If it has coordinates, the answer is read as boxes
or points, on the scale that --coordinates names; nothing is guessed. The first question and its reply become a record;
later turns are left out and counted, and other turns (tools, system) make a record refused.
"""

from converters.converted import Converted, media, media_keys, need, others, text, untagged
from task.errors import UserError
from task.parsing.answers import parse_boxes, parse_points
from task.task_loader import get_task

SAID = ("conversations", "problem", "question", "solution", "answer")
ASKING, REPLYING = ("human", "user"), ("gpt", "assistant")
PLANES = {"pixels": None, "norm1000": (1000, 1000), "fraction": (1, 1)}


def conversation(raw, options):
    question, written, changes = _first_pair(raw)
    written = untagged(written, changes)
    found, renamed = media(raw)
    record = {"question": question, "question_type": options.question_type} | found
    record |= {"id": raw["id"]} if raw.get("id") is not None else {}
    placed = get_task(options.question_type).config["frame"] != "none"
    record["answer"] = _places(written) if placed else written.strip()
    rest = others(raw, "id", *SAID, *media_keys(raw))
    return [Converted(record, changes + renamed, plane=PLANES[options.coordinates] if placed else None, rest=rest)]


def _first_pair(raw):
    """(question, answer, changes) of the first human turn and the reply to it."""
    if isinstance(raw, dict) and "conversations" not in raw:
        return text(raw, "problem", "question"), str(need(raw, "solution", "answer")), []
    turns = need(raw, "conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise UserError(f"conversations is {turns!r:.60}, not a list of turns")
    turns = [turn for turn in turns if _role(turn) != "system" or turn.get("value", turn.get("content"))]
    for number, turn in enumerate(turns):
        _check_turn(number, turn)
    if len(turns) < 2:
        raise UserError("the conversation has no question with a reply")
    said = [text(turn, "value", "content") for turn in turns]
    return said[0].strip(), said[1], ["later turns left out"] if len(said) > 2 else []


def _role(turn: dict):
    return turn.get("from", turn.get("role"))


def _check_turn(number: int, turn: dict) -> None:
    """UserError, with the reason, unless human and gpt take turns, the human first, and call no tools."""
    role, asks = _role(turn), number % 2 == 0
    if role == "system":
        raise UserError("a system turn cannot be kept: take it out, and put its text into the task's system_prompt")
    if role not in (*ASKING, *REPLYING):
        raise UserError(f"turn {number + 1} is by {role!r}: only human (user) and gpt (assistant) can be converted")
    if turn.get("tool_calls") or turn.get("function_call"):
        raise UserError(f"turn {number + 1} calls a tool, which a record cannot represent")
    if role not in (ASKING if asks else REPLYING):
        wanted = "a human one" if asks else "a reply"
        raise UserError(f"turn {number + 1} is by {role!r} where {wanted} is needed: turns must alternate, human first")


def _places(written):
    boxes = parse_boxes(written)
    places = boxes if boxes is not None else parse_points(written)
    if places is None:
        raise UserError(f"no boxes or points can be read in the reply {written!r:.60}")
    return places
