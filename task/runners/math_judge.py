"""Whether two mathematical answers are equal: math-verify's parser, with stricter comparisons where it is too lenient.

Runs only in the worker of judge.py, because a parse may never end. Numbers are compared here: exactly if both are
exact, to a relative tolerance of 1e-6 if one is a decimal (math-verify rounds both to six places, so that 1/2004! and
1/2006! would be equal). An equation counts as a number if its left side is a symbol, or if it is true; in a chain of
equations all numbers must equal the gold.
"""

import sympy
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.function import AppliedUndef

DECIMAL_TOLERANCE = sympy.Float("1.000001e-6", 20)
DIGITS = 60
WARM_UP = [
    (r"\frac{1}{3}", "1/3"), (r"\{1, 2\}", "{2, 1}"), ("(0, 1)", "[0, 1)"), ("x^2 - 1", "(x-1)(x+1)"),
    (r"\sqrt{2}/2", "0.5"), ("3x + 4y = 1", "y = 2x"), ("x > 3", "3 < x"), (r"2\pi", "x = 50\\%"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "[1, 2]"),
]  # fmt: skip


def judge(gold: str, answer: str) -> bool | str:
    """Whether `answer` equals `gold`, both LaTeX or plain; "no gold" or "no answer" if that one cannot be parsed."""
    wanted = read(gold)
    if wanted is None:
        return "no gold"
    try:
        found = read(answer)
        return "no answer" if found is None else equal(wanted, found)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        # The answer's fault if the gold compares well with itself; else the verifier's, and raised.
        if equal(wanted, read(gold)):
            return "no answer"
        raise


def read(text: str):
    """math-verify's parse of `text`, a list whose first item is sympy's; None if it has none, or a division by zero."""
    # The delimiters matter: without them "3x + 4y + 14 = 0" is read as 0.
    configs = [LatexExtractionConfig()]
    parsed = parse(f"${text}$", extraction_config=configs, fallback_mode="no_fallback", parsing_timeout=None)
    if not parsed or not isinstance(parsed[0], sympy.Basic | sympy.MatrixBase) or undefined(parsed[0]):
        return None
    return parsed


def undefined(value) -> bool:
    """True for an expression that contains a division by zero. Infinity itself is a value."""
    return value.has(sympy.zoo, sympy.nan)


def equal(wanted: list, found: list) -> bool:
    gold, answer = wanted[0], found[0]
    if isinstance(answer, sympy.And) and is_number(gold):
        numbers = [side for equation in answer.args for side in equation.args if is_number(side)]
        return bool(numbers) and all(same_number(gold, number) for number in numbers)
    if isinstance(answer, sympy.Equality) and not isinstance(gold, sympy.Rel):
        if not isinstance(answer.lhs, sympy.Symbol | AppliedUndef) and not (
            is_number(answer.lhs) and is_number(answer.rhs) and same_number(answer.lhs, answer.rhs)
        ):
            return False
        answer, found = answer.rhs, [answer.rhs]
    if is_number(gold) and is_number(answer):
        return same_number(gold, answer)
    return bool(verify(wanted, found, timeout_seconds=None))


def is_number(value) -> bool:
    return isinstance(value, sympy.Expr) and value.is_number


def same_number(a, b) -> bool:
    exact = not (a.has(sympy.Float) or b.has(sympy.Float))
    a, b = a.doit(), b.doit()
    if a.is_Rational and b.is_Rational and exact:
        return bool(a == b)
    if not (a.is_finite and b.is_finite):
        return bool(a == b) and not undefined(a)
    if a.is_zero or b.is_zero:
        return bool((a - b).equals(0))
    x, y = a.evalf(DIGITS), b.evalf(DIGITS)
    tolerance = sympy.Float(10) ** (10 - DIGITS) if exact else DECIMAL_TOLERANCE
    return bool(abs(x - y) <= tolerance * max(abs(x), abs(y)))
