"""easy-VQA (package easy-vqa, MIT): questions about the one shape in a picture of 64 x 64 pixels."""

import re

from converters.converted import Converted
from converters.sources import load
from task.errors import UserError

SHAPES = ("circle", "rectangle", "triangle")
COLOURS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")


def read_easy_vqa(source, options):
    """`questions.json`, a list of [question, answer, picture number], with the pictures in images/ beside it.

    All questions of a picture together tell its shape and colour, which become the `thought` of its records.
    """
    content = load(source)
    if not isinstance(content, list) or (content and not any(map(whole, content))):
        raise UserError(f"{source} is not easy-VQA's file: it must be a list of [question, answer, picture number].")
    seen: dict[int, set[str]] = {}
    for question, answer, picture in filter(whole, content):
        words = seen.setdefault(picture, set())
        if kind_of(question) in ("colour", "shape"):
            words |= {answer, *named(question)}
        elif (kind_of(question) == "present") == (answer == "yes"):
            words |= set(named(question))
    split = source.resolve().parent.name
    return [
        (f"{source} question {number}", {"raw": raw, "seen": seen, "id": f"easy-vqa-{split}-{number}"})
        for number, raw in enumerate(content)
    ]


def whole(raw) -> bool:
    """Whether an entry is [question, answer, picture number]."""
    return isinstance(raw, list) and [type(part) for part in raw] == [str, str, int]


def easy_vqa(raw, options):
    if not whole(raw["raw"]):
        raise UserError("it must be [question, answer, picture number]")
    question, answer, picture = raw["raw"]
    record = {"id": raw["id"], "image": f"images/{picture}.png", "question": question, "answer": answer}
    record |= {"question_type": "ocr-vqa", "kind": kind_of(question)}
    colours, shapes = ([word for word in names if word in raw["seen"][picture]] for names in (COLOURS, SHAPES))
    changes = []
    if len(colours) == len(shapes) == 1:
        record["thought"] = f"A {colours[0]} {shapes[0]}."
    else:
        changes.append("no thought, since the picture's questions do not tell its shape and colour")
    return [Converted(record, changes)]


def kind_of(question: str) -> str:
    """What a question asks for: colour, shape, present (yes if it is there) or absent (yes if it is not).

    >>> [kind_of(q) for q in ("what is the color of the shape?", "what shape is present?", "is no red shape present?")]
    ['colour', 'shape', 'absent']
    """
    if question.startswith("what"):
        return "colour" if "color" in question else "shape"
    return "absent" if re.search(r"\b(no|not)\b", question) else "present"


def named(question: str) -> list[str]:
    """The shapes and colours that a question names."""
    return [word for word in re.findall(r"\w+", question) if word in SHAPES + COLOURS]
