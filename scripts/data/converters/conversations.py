"""Conversations as LLaVA and VLM-R1 keep them, and as many data sets copied it.

{"id", "image": path or list of paths, "conversations": [{"from": "human", "value"}, {"from": "gpt", "value"}, ...]};
VLM-R1 also {"problem", "solution"}. The task is named by --question_type. Where it has coordinates, the answer is read
as boxes or points, on the scale that --coordinates names; nothing is guessed.
"""

from converters.converted import Converted, need, text
from task.errors import UserError
from task.parsing.answers import ANSWER_START, answer_text, parse_boxes, parse_points
from task.task_loader import get_task

PLANES = {"pixels": None, "norm1000": (1000, 1000), "fraction": (1, 1)}


def conversation(raw, options):
    question, written, changes = _first_pair(raw)
    if ANSWER_START in written:
        written = answer_text(written)
        if written is None:
            raise UserError("the answer is not one block of <answer> </answer> after the thought")
        changes.append("answer taken out of its tags")
    record = {"question": question, "question_type": options.question_type}
    record |= {key: raw[key] for key in ("id", "image", "video") if raw.get(key) is not None}
    placed = get_task(options.question_type).config["frame"] != "none"
    record["answer"] = _places(written) if placed else written.strip()
    return [Converted(record, changes, plane=PLANES[options.coordinates] if placed else None)]


def _first_pair(raw):
    """(question, answer, changes) of the first human turn and the reply to it."""
    if isinstance(raw, dict) and "conversations" not in raw:
        return text(raw, "problem", "question"), str(need(raw, "solution", "answer")), []
    turns = need(raw, "conversations")
    said = [text(turn, "value", "content") for turn in turns if turn.get("from", turn.get("role")) != "system"]
    if len(said) < 2:
        raise UserError("the conversation has no question with a reply")
    later = ["later turns left out"] if len(said) > 2 else []
    return said[0].strip(), said[1], later


def _places(written):
    boxes = parse_boxes(written)
    places = boxes if boxes is not None else parse_points(written)
    if places is None:
        raise UserError(f"no boxes or points can be read in the reply {written!r:.60}")
    return places
