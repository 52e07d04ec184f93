"""Parses answers in words: the content of \\boxed{}, a choice letter, a program in a fence.

As in answers.py, every function accepts any text, returns None for "no answer", raises nothing and runs in linear
time.
"""

import re

from task.parsing.answers import MAX_ANSWER_CHARS, compatible, normal_text

BOXES = ("\\boxed", "\\fbox")
CHOICES = "ABCDEFGHIJ"
MARKS = (("**", "**"), ("`", "`"), ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_UPRIGHT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf)\{([^{}]*)\}")
_FENCE = re.compile("`{3,}")
_LANGUAGE = re.compile(r"\{?[A-Za-z][\w.+#-]*\}?|")
_CHOICE = re.compile(r"[(\[]?([A-J])[)\].:]?")


def boxed_text(text: str | None) -> str | None:
    """The content of the one \\boxed{...} of a text, with balanced braces; the text itself if it has none.

    Two boxes with different contents are not an answer, and neither is an unclosed box.

    >>> boxed_text("so it is \\\\boxed{\\\\frac{1}{3}}.")
    '\\\\frac{1}{3}'
    """
    if text is None or len(text) > MAX_ANSWER_CHARS:
        return None
    if not any(box in text for box in BOXES):
        return text.strip() or None
    found = set()
    for box in BOXES:
        # The pieces are disjoint, and each is read only until its box closes: linear overall.
        for piece in text.split(box)[1:]:
            content = _braced(piece.lstrip())
            if content is None:
                return None
            found.add(content.strip())
    return (found.pop() or None) if len(found) == 1 else None


def parse_choice(text: str | None) -> str | None:
    """The letter A to J of an answer that names one choice and nothing else: "B", "(b)", "B.", "\\boxed{\\text{B}}".

    "A or B" and a letter followed by words do not.

    >>> parse_choice(" (b) ")
    'B'
    """
    text = boxed_text(text)
    if text is None:
        return None
    match = _CHOICE.fullmatch(compatible(plain_words(text)).strip().upper())
    return match[1] if match else None


def unmarked(text: str) -> str:
    """A text without the bold, code and formula marks of Markdown and LaTeX that enclose all of it, stripped.

    >>> unmarked("**$5$**"), unmarked("$4$ or $5$")
    ('5', '$4$ or $5$')
    """
    text = text.strip()
    for start, end in MARKS:
        inside = text.removeprefix(start).removesuffix(end)
        if len(inside) + len(start) + len(end) == len(text) and start not in inside and end not in inside:
            text = inside.strip()
    return text


def plain_words(text: str, kept: str = r"\1") -> str:
    """`unmarked`, and without LaTeX's commands for upright text: their content is kept, or dropped (`kept` "").

    >>> plain_words("\\\\textbf{(A)}"), plain_words("12\\\\text{ inches}"), plain_words("12\\\\text{ inches}", "")
    ('(A)', '12 inches', '12')
    """
    return _UPRIGHT.sub(kept, unmarked(text)).strip()


def same_words(answer: str, gold: str) -> bool:
    """Equal after `normal_text` and without a final full stop. Containment is not enough; empty texts are never equal.

    >>> same_words("Garden phlox.", "garden  phlox")
    True
    """
    answer, gold = (normal_text(text).rstrip(". ") for text in (answer, gold))
    return answer == gold != ""


def program_text(text: str | None, limit: int = MAX_ANSWER_CHARS) -> str | None:
    """The program an answer holds: the content of its one fenced block, or the whole text if there is no fence.

    Indentation is kept. Several blocks, or an unclosed one, are not an answer; text around the block is ignored.
    """
    if text is None or len(text) > limit:
        return None
    parts = _FENCE.split(text)
    if len(parts) == 1:
        return text.strip("\n") if text.strip() else None
    if len(parts) != 3:
        return None
    first, newline, rest = parts[1].partition("\n")
    body = rest if newline and _LANGUAGE.fullmatch(first.strip()) else parts[1]
    return body.rstrip() if body.strip() else None


def _braced(text: str) -> str | None:
    """The content of the braces that a text starts with; None if it does not start with any, or they are not closed."""
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
