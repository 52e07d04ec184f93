"""Parses completions: the think/answer structure, then JSON, numbers, points and boxes inside the answer.

Policies in training write anything, so every function here accepts any text, returns None for "no answer" (never a
made-up value such as a box of zeros), raises nothing, and takes time linear in the text. The rules:

- Tags count only as written: `<Answer>` is not a tag, and a tag inside a thought counts as one more tag.
- One fence (three or more backticks or tildes, with or without a language) around the whole answer is removed; any
  other use of fences is not an answer.
- Full-width forms, the minus sign and unusual spaces are read as their ASCII equivalents, and invisible characters are
  ignored. Nothing else is converted: 10² is not 102.
- A comma before a closing bracket is accepted. NaN, Infinity and 1e999 are not answers; neither is 1,000, which would
  be read as 1 and 0.
- Numbers in quotes, and true or false, are not numbers. Corners of a box are kept in the order given.
"""

import itertools
import json
import math
import re
import unicodedata

from task.errors import UserError

ANSWER_START, ANSWER_END = "<answer>", "</answer>"
MAX_ANSWER_CHARS = 20_000  # longer answers are not parsed
MOST_MARKS = 30  # accents and the like on one character
FENCES = "`~"

# Full-width forms (and the full-width space) lie 0xFEE0 above ASCII; minus and en dash; typographic spaces.
_ASCII = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | dict.fromkeys((0x2212, 0x2013), "-")
_ASCII |= dict.fromkeys((0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " ")
# Invisible characters: zero width, text direction, byte order mark.
INVISIBLE = dict.fromkeys((*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF))
_ASCII |= INVISIBLE
# Hyphens, en dash and minus; the quotation marks that word processors insert.
TYPOGRAPHY = dict.fromkeys((0x2010, 0x2011, 0x2013, 0x2212), "-")
TYPOGRAPHY |= dict.fromkeys((0x2018, 0x2019), "'") | dict.fromkeys((0x201C, 0x201D, 0xAB, 0xBB), '"')
TYPOGRAPHY |= {0x2044: "/"}
# Superscripts, subscripts, fractions, and numbers in circles and brackets: NFKC would turn 10² and 10₂ into 102.
_SET_APART = re.compile("([²³¹⁰ⁱ⁴-ⁿ]+)|([₀-₎]+)|[¼-¾⅐-⅞↉①-⒛⓪㉑-㉟㊱-㊿]")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_LANGUAGE = re.compile(r"[ \t]*[A-Za-z][\w+.#-]*")
_PYTHON = [
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"(?<![\s,\[{(]),(?=\s*[\])}])", ""),  # the last comma
        *((r"\bNone\b", "null"), (r"\bTrue\b", "true"), (r"\bFalse\b", "false")),
        *((r"(?<![0-9eE])\+(?=[0-9.])", ""), (r"(?<![0-9])\.(?=[0-9])", "0."), (r"(?<=[0-9])\.(?![0-9])", ".0")),
    )
]
_CLOSING_TAG = re.compile(r"([<\[({|]+)/(.+)", re.DOTALL)
# No part of this pattern can fail after it has consumed digits, so a search never goes back over them.
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def thought_tags(thought_end: str = "</think>") -> tuple[str, str]:
    """The texts that open and close a thought.

    A closing tag has the opening tag without its slash, whatever its brackets; before any other text, <think> opens.

    >>> thought_tags("</analysis>"), thought_tags("[/REASONING]"), thought_tags("END OF THOUGHT")
    (('<analysis>', '</analysis>'), ('[REASONING]', '[/REASONING]'), ('<think>', 'END OF THOUGHT'))

    Raises UserError for a text that prompts cannot show, or that cannot be told from the other tags.
    """
    tag = _CLOSING_TAG.fullmatch(thought_end)
    opening = tag[1] + tag[2] if tag else "<think>"
    fault = _thought_fault(opening, thought_end)
    if fault:
        raise UserError(f"thought_end={thought_end!r} {fault}: give a text such as </think> or [/REASONING]")
    return opening, thought_end


def _thought_fault(opening: str, thought_end: str) -> str | None:
    if not thought_end.strip():
        return "is white space alone, which no prompt can show"
    if "{Question}" in thought_end:
        return "holds {Question}, the place of the question in templates"
    if thought_end.startswith("</") and ">" not in thought_end:
        return "lacks its >"
    tags = (opening, thought_end, ANSWER_START, ANSWER_END)
    if any(one in other for one, other in itertools.permutations(tags, 2)):
        return f"cannot be told from {opening}, {ANSWER_START} and {ANSWER_END}"
    return None


def split_completion(completion: str, thought_end: str = "</think>") -> tuple[str, str] | None:
    """(thought, answer) of a well-formed completion, else None.

    The form: one thought block, then one answer block, each tag once, with only white space around and between
    them. A thought may be empty. The texts are returned as written.

    >>> split_completion("<think>a</think> <answer>1</answer>")
    ('a', '1')
    """
    tags = (*thought_tags(thought_end), ANSWER_START, ANSWER_END)
    if any(completion.count(tag) != 1 for tag in tags):
        return None
    parts, rest = [], completion
    for tag in tags:
        part, found, rest = rest.partition(tag)
        if not found:  # the tags are in another order
            return None
        parts.append(part)
    before, thought, between, answer = parts
    if before.strip() or between.strip() or rest.strip():
        return None
    return thought, answer


def answer_text(completion: str, thought_end: str = "</think>") -> str | None:
    """The text to score, stripped: the one answer block after the last thought; None if there is none.

    More lenient than `split_completion`, so that accuracy does not depend on format: text around the answer block is
    allowed, and the thought may be missing. Several answer blocks, an empty one, and a thought that is opened but never
    closed are not an answer.
    """
    thought_start, thought_end = thought_tags(thought_end)
    _, closed, rest = completion.rpartition(thought_end)
    if not closed and thought_start in completion:
        return None
    if rest.count(ANSWER_START) != 1 or rest.count(ANSWER_END) != 1:
        return None
    body, found, _ = rest.partition(ANSWER_START)[2].partition(ANSWER_END)
    return (body.strip() or None) if found else None


def parse_value(text: str | None):
    """The JSON value a text holds, with or without one outer fence; Python's quotes and tuples are read too.

    None if it holds none, or a number that is not finite. Tuples become lists.

    >>> parse_value("{'bbox_2d': (334, 557, 468, 614)}")
    {'bbox_2d': [334, 557, 468, 614]}
    """
    text = _plain(text)
    if text is None:
        return None
    for spelling in _spellings(text):
        try:
            return _finite(json.loads(spelling))
        except (ValueError, RecursionError):
            continue
    return None


def parse_numbers(text: str | None) -> list[float] | None:
    """A number, a list of numbers, or bare numbers between commas, spaces and balanced brackets, as floats.

    >>> parse_numbers("[-5, 10.5, 30, 40]")
    [-5.0, 10.5, 30.0, 40.0]
    >>> parse_numbers("334 557 468 614")
    [334.0, 557.0, 468.0, 614.0]
    """
    value = parse_value(text)
    if value is None:
        return _bare_numbers(text)
    return _numbers(value if isinstance(value, list) else [value])


def parse_points(text: str | None) -> list[list[float]] | None:
    """Points [[x, y], ...]; one point [x, y] gives a list of one, `[]` gives an empty list.

    A point may also be an object with the key point_2d.
    """
    return _shapes(text, 2, "point_2d")


def parse_boxes(text: str | None) -> list[list[float]] | None:
    """Boxes [[x1, y1, x2, y2], ...]; one box gives a list of one, `[]` (no object) gives an empty list.

    A box may also be an object with the key bbox_2d.
    """
    return _shapes(text, 4, "bbox_2d")


def normal_text(text: str) -> str:
    """Normalises a text for comparison: Unicode NFKC, folded case, single spaces. Visible text never becomes empty.

    >>> normal_text("  Garden   Phlox ")
    'garden phlox'
    """
    return " ".join(compatible(text).casefold().split())


def compatible(text: str) -> str:
    """Unicode NFKC with ASCII dashes and quotation marks, and without invisible characters.

    Numbers stay separate: a superscript follows a ^, and after a digit a subscript follows a _, and a fraction or a
    circled number a space.

    At most 30 combining marks per character are kept (Unicode's own limit for streams, UAX 15): Python sorts them by
    insertion, so the time for a text of only marks would grow with its square, to half a minute for 100 kB.

    >>> compatible("ｉｔ’s −5\u200b"), compatible("10⁻²"), compatible("1½"), compatible("H₂O")
    ("it's -5", '10^-2', '1 1/2', 'H2O')
    """
    if text.isascii():
        return text
    kept, marks = [], 0
    for char in text:
        # Look at the first character of its decomposition: some marks have class 0 themselves.
        is_mark = unicodedata.combining(unicodedata.normalize("NFKD", char)[0]) > 0
        marks = marks + 1 if is_mark else 0
        if marks <= MOST_MARKS:
            kept.append(char)
    text = _SET_APART.sub(_set_apart, "".join(kept))
    return unicodedata.normalize("NFKC", text).translate(INVISIBLE | TYPOGRAPHY)


def _set_apart(found: re.Match) -> str:
    """A match of `_SET_APART`, separated from the numbers on both sides of it."""
    before, after = found.string[max(found.start() - 1, 0) : found.start()], found.string[found.end() : found.end() + 1]
    mark = "^" if found[1] else "" if not before.isnumeric() else "_" if found[2] else " "
    return mark + found[0] + " " * after.isnumeric()


def _plain(text: str | None) -> str | None:
    """The text with ASCII equivalents and without one outer fence; None if too long, empty, or fenced otherwise."""
    if text is None or len(text) > MAX_ANSWER_CHARS:
        return None
    text = text.translate(_ASCII).strip()
    width = len(text) - len(text.lstrip(text[:1]))
    if text[:1] in FENCES and width >= 3:
        fence, body = text[:width], text[width:]
        if body.count(fence) != 1 or not body.endswith(fence):
            return None
        body = body.removesuffix(fence)
        language = _LANGUAGE.match(body)
        text = body[language.end() if language else 0 :].strip()
    return text if text and "```" not in text else None


def _spellings(text: str):
    """Yields the text, then the text translated from Python's notation to JSON, bare and as a list.

    Python's notation: single quotes, tuples, trailing commas, None, True, False, and numbers such as 1. and .5 and +1.
    Not by `ast.literal_eval`, where the text would determine the depth of Python's recursion.
    """
    yield text
    written, code, quote, escaped = [], [], None, False
    for char in text:
        if quote is None:
            if char not in "'\"":
                code.append(char)
                continue
            written.append(_json_code("".join(code)))
            code, quote, char = [], char, '"'
        elif escaped:
            escaped = False
            if char == "'":
                written.pop()  # JSON has no escape for it
        elif char == "\\":
            escaped = True
        elif char == quote:
            quote, char = None, '"'
        elif char == '"':
            char = '\\"'
        written.append(char)
    written.append(_json_code("".join(code)))
    written = "".join(written)
    yield written
    yield f"[{written}]"


def _json_code(code: str) -> str:
    """Translates Python's notation outside strings to JSON."""
    for pattern, spelling in _PYTHON:
        code = pattern.sub(spelling, code)
    return code.replace("(", "[").replace(")", "]")


def _finite(value):
    """The value itself; ValueError if a number in it is not finite."""
    for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        _finite(item)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not finite")
    return value


def _bare_numbers(text: str | None) -> list[float] | None:
    text = _plain(text)
    if text is None:
        return None
    rest, numbers = _NUMBER.sub("#", text), _NUMBER.findall(text)
    if "##" in rest or rest.strip("#,;[]() \t\r\n"):
        return None  # numbers that touch (2020-01-02), or anything else beside numbers
    if rest.count("[") != rest.count("]") or rest.count("(") != rest.count(")"):
        return None  # cut off
    if any(_LEADING_ZERO.match(number) for number in numbers):
        return None  # the second half of 1,000
    return _numbers([float(number) for number in numbers])


def _numbers(values) -> list[float] | None:
    """A list of one or more finite numbers as floats, else None."""
    if not isinstance(values, list) or not values:
        return None
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return None
    try:
        floats = [float(value) for value in values]
    except OverflowError:  # an int of hundreds of digits
        return None
    return floats if all(math.isfinite(value) for value in floats) else None


def _shapes(text: str | None, length: int, key: str) -> list[list[float]] | None:
    """Lists of `length` numbers each, given bare or as objects under `key`."""
    value = parse_value(text)
    if value is None:
        numbers = _bare_numbers(text)
        return [numbers] if numbers is not None and len(numbers) == length else None
    if isinstance(value, dict):
        value = value.get(key)
    if not isinstance(value, list):
        return None
    numbers = _numbers(value)
    if numbers is not None:
        return [numbers] if len(numbers) == length else None
    shapes = [_numbers(item.get(key) if isinstance(item, dict) else item) for item in value]
    return shapes if all(shape is not None and len(shape) == length for shape in shapes) else None
