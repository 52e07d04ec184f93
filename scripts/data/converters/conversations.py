"""Conversations in the format of LLaVA and VLM-R1, which many data sets use.

{"id", "image": path or list of paths, "conversations": [{"from": "human", "value"}, {"from": "gpt", "value"}, ...]};
ShareGPT also "messages": [{"role": "user", "content"}, {"role": "assistant", "content"}, ...], each content a text
or a list of parts, {"type": "text", "text"} and {"type": "image", "image": path}; VLM-R1 also {"problem", "solution"}.
--question_type names the task. If it has coordinates, the answer is read as boxes or points, on the scale that
--coordinates names; nothing is guessed. The first question and its reply become a record, with the thought of the reply
if it has one; later turns are left out and counted, and other turns (tools, system) make a record refused.
"""

from converters.converted import Converted, media, media_keys, need, others, text, written_parts
from task.errors import UserError
from task.parsing.answers import parse_boxes, parse_points
from task.task_loader import get_task

TURNS = ("conversations", "messages")
SAID = (*TURNS, "problem", "question", "solution", "answer")
MARK = "<image>"  # the place of a picture in a question
ASKING, REPLYING = ("human", "user"), ("gpt", "assistant")
PLANES = {"pixels": None, "norm1000": (1000, 1000), "fraction": (1, 1)}


def conversation(raw, options):
    question, written, pictures, changes = _first_pair(raw)
    thought, written = written_parts(written, changes)
    found, renamed = media(raw)
    if pictures and found.setdefault("image", pictures) != pictures:
        raise UserError("the question and the record name different pictures: keep one of them")
    record = {"question": question, "question_type": options.question_type} | found
    record |= {"thought": thought} if thought is not None and raw.get("thought") is None else {}
    record |= {"id": raw["id"]} if raw.get("id") is not None else {}
    placed = get_task(options.question_type).config["frame"] != "none"
    record["answer"] = _places(written) if placed else written.strip()
    rest = others(raw, "id", *SAID, *media_keys(raw))
    return [Converted(record, changes + renamed, plane=PLANES[options.coordinates] if placed else None, rest=rest)]


def _first_pair(raw):
    """(question, answer, pictures that the question itself names, changes) of the first human turn and its reply."""
    if isinstance(raw, dict) and any(name in raw for name in SAID) and not any(name in raw for name in TURNS):
        return text(raw, "problem", "question"), str(need(raw, "solution", "answer")), [], []
    turns = need(raw, *TURNS)
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise UserError(f"{' or '.join(TURNS)} is {turns!r:.60}, not a list of turns")
    turns = [turn for turn in turns if _role(turn) != "system" or turn.get("value", turn.get("content"))]
    for number, turn in enumerate(turns):
        _check_turn(number, turn)
    if len(turns) < 2:
        raise UserError("the conversation has no question with a reply")
    (question, pictures), (answer, in_reply) = map(_said, turns[:2])
    if in_reply:
        raise UserError("the reply holds a picture, which an answer cannot")
    named = [path for path in pictures if path is not None]
    return question.strip(), answer, named, ["later turns left out"] if len(turns) > 2 else []


def _said(turn: dict) -> tuple[str, list]:
    """(text, pictures) of a turn. Of a list of parts, each picture is its path or None, and its place is marked."""
    content = need(turn, "value", "content")
    if not isinstance(content, list):
        return text(turn, "value", "content"), []
    words, pictures = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "image", "image_url"):
            raise UserError(f"a part of a turn is {part!r:.60}: only those of type text and image can be converted")
        if kind == "text":
            words.append(text(part, "text"))
            continue
        path = next((part[name] for name in ("image", "image_url", "path", "url") if part.get(name)), None)
        pictures.append(path.get("url") if isinstance(path, dict) else path)
        words.append(MARK)
    return text({"content": "".join(words)}, "content"), pictures


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
