"""Reads answers in words: the content of \\boxed{}, a choice letter, a program in a fence.

As in answer_parsing.py every function takes any text, returns None for "no answer", raises nothing and costs linear
time.
"""

import re

from task.answer_parsing import MAX_ANSWER_CHARS, compatible, normal_text

FENCE = "```"
BOXES = ("\\boxed", "\\fbox")
CHOICES = "ABCDEFGHIJ"
_CHOICE = re.compile(r"[(\[]?([A-J])[)\].:]?")


def boxed_text(text: str | None) -> str | None:
    """The content of the one \\boxed{...} of a text, braces balanced; the text itself when it has none.

    Two boxes with different contents are no answer, and neither is a box that is not closed.

    >>> boxed_text("so it is \\\\boxed{\\\\frac{1}{3}}.")
    '\\\\frac{1}{3}'
    """
    if text is None or len(text) > MAX_ANSWER_CHARS:
        return None
    if not any(box in text for box in BOXES):
        return text.strip() or None
    found = set()
    for box in BOXES:
        # The pieces are disjoint, and each is read up to where its box closes: linear in all.
        for piece in text.split(box)[1:]:
            content = _braced(piece.lstrip())
            if content is None:
                return None
            found.add(content.strip())
    return (found.pop() or None) if len(found) == 1 else None


def parse_choice(text: str | None) -> str | None:
    """The letter A to J of an answer that names one choice and nothing else: "B", "(b)", "B.", "\\boxed{B}".

    "A or B" and a letter with words after it name none.

    >>> parse_choice(" (b) ")
    'B'
    """
    text = boxed_text(text)
    if text is None:
        return None
    match = _CHOICE.fullmatch(compatible(text).strip().upper())
    return match[1] if match else None


def same_words(answer: str, gold: str) -> bool:
    """Equal after `normal_text` and without a full stop at the end. Never by containment, never for an empty text.

    >>> same_words("Garden phlox.", "garden  phlox")
    True
    """
    answer, gold = (normal_text(text).rstrip(". ") for text in (answer, gold))
    return answer == gold != ""


def program_text(text: str | None, limit: int = MAX_ANSWER_CHARS) -> str | None:
    """The program an answer holds: the inside of its one fenced block, or the whole text when there is no fence.

    Indentation is kept. Several blocks, and a block that is not closed, are no answer; words round one block are not
    read.
    """
    if text is None or len(text) > limit:
        return None
    if FENCE not in text:
        return text.strip("\n") if text.strip() else None
    parts = text.split(FENCE)
    if len(parts) != 3:
        return None
    first, newline, rest = parts[1].partition("\n")
    language = first.strip().lower()
    body = rest if newline and (not language or language.isidentifier() or language == "python3") else parts[1]
    return body.rstrip() if body.strip() else None


def _braced(text: str) -> str | None:
    """The inside of the braces a text starts with, None when it starts with none or they do not close."""
    if not text.startswith("{"):
        return None
    depth, escaped = 0, False
    for place, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return text[1:place]
    return None
