"""Converts the notations of mathematics that models use besides LaTeX: Markdown, Unicode symbols, plain text.

As in answers.py, functions accept any text, raise nothing and run in linear time.
"""

import re
from fractions import Fraction

from task.parsing.answers import compatible
from task.parsing.text import plain_words, unmarked

_SIGNS = {"·": "\\cdot ", "°": "^\\circ ", "∞": "\\infty ", "⁄": "/", "**": "^", "\\sqrt(": "sqrt("}
_SUPERSCRIPTS = re.compile("[²³¹⁰ⁱ⁴-ⁿ]+")
_SUBSCRIPTS = re.compile("[₀-₎ₐ-ₜ]+")
_VULGAR_FRACTIONS = re.compile("[¼-¾⅐-⅞↉]")
_ROOTS = re.compile(r"√ ?(?:([0-9]+(?:\.[0-9]+)?|[A-Za-z])|(?=\())")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]$]|\$")
_SIGNED_EXPONENTS = re.compile(r"\^ ?([-+](?:[0-9]+|[A-Za-z]))")
_MIXED_NUMBERS = re.compile(r"(?<![\w.^{}/)\\])([0-9]+) +([0-9]+)/([0-9]+)(?![\w./^])")
# Functions with LaTeX commands, as written in plain text. min and sec without a bracket are units.
FUNCTIONS = r"arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|csc|exp|log|ln|(?:sec|max|min|gcd)(?= ?\()"
_PLAIN_FUNCTIONS = re.compile(rf"(?<![\\A-Za-z])({FUNCTIONS})(?![A-Za-z])")
_LONG_EXPONENTS = re.compile(r"\^ ?([0-9]{2,})")
_WHOLE = r"(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)"
_BAR, _DOT = r"\\(?:overline|bar|dot)", r"\\dot ?"
_REPEATING = [
    re.compile(rf"{_WHOLE}\.([0-9]*){end}")
    for end in (
        rf"{_DOT}\{{?([0-9])\}}?([0-9]*){_DOT}\{{?([0-9])\}}?",  # 0.\dot{1}4285\dot{7}
        rf"{_BAR} ?\{{([0-9]+)\}}",
        rf"{_BAR} ?([0-9])",
        r"\(([0-9]+)\)",
    )
]
_ELLIPSIS = re.compile(rf"{_WHOLE}\.([0-9]{{0,12}}?)([0-9]{{1,8}}?)\3{{2,}} ?(?:\.\.\.|\\[lc]?dots)")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-5][0-9])(?::([0-5][0-9]))? {0,4}(?:([ap])\.? ?m\.?)?")
_PI = re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])")
_THOUSANDS = r"(?:,(?:\\!)?|\{,\}|\\[,;: ]| )"
_NUMBER = re.compile(
    rf"([-+]? ?(?:[0-9]{{1,3}}(?:{_THOUSANDS}[0-9]{{3}})+|[0-9]+)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{{1,3}})?|[-+]?\.[0-9]+)"
    r"( ?(?:\\?%|percent))?"
)


def latex(text: str) -> str:
    """The text in one line of LaTeX as math-verify reads it, without delimiters and without a full stop at the end.

    >>> latex("$2½$"), latex("x² + √3."), latex("10^-9"), latex("0.\\\\overline{3}"), latex("exp(16)")
    ('2\\\\frac{1}{2}', 'x^{2} + \\\\sqrt{3}', '10^{-9}', '\\\\frac{1}{3}', '\\\\exp(16)')
    """
    text = unmarked(text)
    # Before `compatible`, which turns them into plain text.
    text = _VULGAR_FRACTIONS.sub(lambda found: "\\frac{" + compatible(found[0]).replace("/", "}{") + "}", text)
    text = _SUPERSCRIPTS.sub(lambda found: f"^{{{compatible(found[0])[1:]}}}", text)
    text = _SUBSCRIPTS.sub(lambda found: f"_{{{compatible(found[0])}}}", text)
    text = compatible(text)
    for sign, spelling in _SIGNS.items():
        text = text.replace(sign, spelling)
    text = _ROOTS.sub(lambda found: f"\\sqrt{{{found[1]}}}" if found[1] else "sqrt", text)
    text = _DELIMITERS.sub(" ", text)
    text = _SIGNED_EXPONENTS.sub(r"^{\1}", text)
    text = _LONG_EXPONENTS.sub(r"^{\1}", text)
    text = _PLAIN_FUNCTIONS.sub(r"\\\1", text)
    for pattern in (*_REPEATING, _ELLIPSIS):
        text = pattern.sub(_fraction, text)
    text = _MIXED_NUMBERS.sub(r"\1\\frac{\2}{\3}", text)
    return _PI.sub(r"\\pi ", text).strip().removesuffix(".").strip()


def same_time(answer: str, gold: str) -> bool | None:
    """Whether two times of day or durations are equal; None when one has another form than 9:00, 12:30:15 or 9:00 am.

    Times are not quotients: 9:00 differs from 10:00, and 3:15 from 4:20. A missing am or pm matches both. No ratio ends
    in :00, so such a gold answer equals only times.

    >>> same_time("09:00", "9:00 a.m."), same_time("4:20", "3:15"), same_time("2:4", "1:2")
    (True, False, None)
    """
    readings = [_CLOCK.fullmatch(compatible(plain_words(text)).strip().lower()) for text in (answer, gold)]
    if None in readings:
        return False if readings[1] and readings[1][2] == "00" else None
    (*one, half), (*other, other_half) = (found.groups("") for found in readings)
    return [int(part or 0) for part in one] == [int(part or 0) for part in other] and (
        half == other_half or "" in (half, other_half)
    )


def without_percent(text: str) -> tuple[str, bool]:
    """One expression, as `latex` leaves it, without a percent sign at its end, and whether it had one.

    >>> without_percent(r"\\frac{100}{3}\\%"), without_percent("5")
    (('\\\\frac{100}{3}', True), ('5', False))
    """
    bare = text.removesuffix("percent").removesuffix("%").removesuffix("\\").rstrip()
    one = text.endswith(("%", "percent")) and not set(bare) & set(",;=%")
    return (bare, True) if one else (text, False)


def same_plain_number(answer: str, gold: str) -> bool | None:
    """Whether two plain numbers, as `latex` leaves them, are equal; None if one is not a plain number.

    Thousands may be set apart, and 1e-3 is 0.001. A percentage beside a number without the sign equals it with or
    without the division: to "how many percent" 60 and 60% are one answer.

    >>> same_plain_number("1,234.50", "1234.5"), same_plain_number("60%", "60"), same_plain_number("60%", "0.6%")
    (True, True, False)
    """
    readings = [_NUMBER.fullmatch(text) for text in (answer, gold)]
    if None in readings:
        return None
    values = [Fraction(re.sub(_THOUSANDS, "", found[1])) for found in readings]
    if values[0] == values[1] or bool(readings[0][2]) == bool(readings[1][2]):
        return values[0] == values[1]
    return values[0] / 100 == values[1] if readings[0][2] else values[0] == values[1] / 100


def _fraction(found: re.Match) -> str:
    """A repeating decimal as a fraction. Groups: the whole part, the digits before the period, the period."""
    whole, before, *repeated = found.groups()
    repeated = "".join(repeated)
    value = Fraction(int(before or 0)) + Fraction(int(repeated), 10 ** len(repeated) - 1)
    value = int(whole.replace(",", "") or 0) + value / 10 ** len(before)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
