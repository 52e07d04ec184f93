"""Boxes, choices and programs in what a model wrote."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task.parsing.math_text import latex, same_plain_number
from task.parsing.text import boxed_text, parse_choice, plain_words, program_text, same_words, unmarked

TOKENS = [
    "\\boxed{",
    "\\fbox{",
    "}",
    "{",
    "\\",
    "```",
    "```python\n",
    "\n",
    "A",
    "(b)",
    "or",
    " ",
    "\ud800",
    "\u0f73",
    "Ａ",
]
PIECES = st.lists(st.sampled_from(TOKENS) | st.text(max_size=6), min_size=1, max_size=8).map("".join)
LONG = st.builds(lambda piece, size: (piece * size)[:size], PIECES.filter(bool), st.integers(1, 100_000))
TEXTS = st.text(max_size=300) | PIECES | LONG
PARSERS = (boxed_text, parse_choice, program_text)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{\frac{1}{3}}", r"\frac{1}{3}"),
        (r"so it is $\boxed{ \{1, 2\} }$.", r"\{1, 2\}"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{5} or \boxed{5}", "5"),
        (r"\boxed{5} or \boxed{6}", None),
        (r"\boxed{5", None),
        (r"\boxed{\boxed{5}}", None),
        (r"\boxed{}", None),
        (r"\boxed 5", None),
        (r"\boxed{\}}", r"\}"),
        (" 42 ", "42"),
        ("", None),
        (None, None),
        ("1" * 20_001, None),
    ],
)
def test_the_content_of_a_box(text, content):
    assert boxed_text(text) == content


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        *[("B", "B"), ("(b)", "B"), ("b.", "B"), (r"\boxed{C}", "C"), ("Ｂ", "B"), ("A or B", None), ("ABCD", None)],
        *[("A, B, C, D", None), ("", None), ("K", None), ("A garden phlox", None), ("(A) (B)", None)],
        *[("**B**", "B"), ("$B$", "B"), (r"\boxed{\text{B}}", "B"), (r"\(\textbf{(B)}\)", "B"), ("$A$ or $B$", None)],
    ],
)
def test_a_choice_is_one_letter_and_nothing_else(text, letter):
    assert parse_choice(text) == letter


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("garden  Phlox.", "Garden phlox", True),
        ("rose or garden phlox or tulip", "garden phlox", False),
        ("", "garden phlox", False),
        ("", "", False),
        (".", ".", False),
        ("A", "A", True),
        ("7", "17", False),
    ],
)
def test_words_are_equal_never_contained(answer, gold, same):
    assert same_words(answer, gold) is same


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("print(1)", "print(1)"),
        ("```python\n  x = 1\n```", "  x = 1"),
        ("```\nx = 1\n```", "x = 1"),
        ("```Python3\nx = 1\n```", "x = 1"),
        ("here:\n```py\nx = 1\n```\nthat is all", "x = 1"),
        ("```x = 1```", "x = 1"),
        ("```x = 1\ny = 2\n```", "x = 1\ny = 2"),
        ("````python3.11\nx = 1\n````", "x = 1"),
        ("``` {python}\n# ~~~\nx = 1\n```", "# ~~~\nx = 1"),
        ("````\n```\nx = 1\n```\n````", None),
        ("```python\nx = 1\n```\n```python\ny = 2\n```", None),
        ("```python\nx = 1", None),
        ("```python\n\n```", None),
        ("", None),
        (None, None),
    ],
)
def test_a_program_in_its_fence(text, program):
    assert program_text(text) == program


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
@given(text=TEXTS)
@settings(max_examples=40, deadline=None, database=None, derandomize=True)
def test_anything_is_read(parser, text):
    found = parser(text)
    assert found is None or (isinstance(found, str) and found.strip() != "")


@pytest.mark.parametrize("rewrite", [unmarked, plain_words, latex], ids=lambda rewrite: rewrite.__name__)
@given(text=TEXTS | st.lists(st.sampled_from([*TOKENS, *"½²√°1 ,/^$*-.e%", "\\(", "\\,", "\\text{"])).map("".join))
@settings(max_examples=60, deadline=2_000, database=None, derandomize=True)
def test_anything_is_rewritten(rewrite, text):
    found = rewrite(text)
    assert isinstance(found, str) and found == found.strip()
    assert same_plain_number(found, "12") in (True, False, None)


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["\\boxed{", "\\boxed", "{", "}", "\\", "```", "```python\n", "A", "\\boxed{1}"])
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__name__)
def test_twice_the_text_costs_twice_the_time(parser, piece, monkeypatch):
    monkeypatch.setattr("task.parsing.text.MAX_ANSWER_CHARS", 10**7)  # else long texts are refused unread
    monkeypatch.setattr(program_text, "__defaults__", (10**7,))

    def seconds(size: int) -> float:
        text, best = (piece * size)[:size], float("inf")
        for _ in range(5):
            started = time.process_time()
            parser(text)
            best = min(best, time.process_time() - started)
        return best

    half, whole = seconds(50_000), seconds(100_000)
    assert whole < 0.5  # about twenty times what it takes
    assert whole <= 2.6 * half or whole < 0.002
