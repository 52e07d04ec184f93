"""Boxes, numbers and labels in every spelling that policies use, and text that is no number."""

import pytest

from task.parsing.answers import parse_boxes, parse_numbers, parse_points, parse_value

BOX = [334.0, 557.0, 468.0, 614.0]


@pytest.mark.parametrize(
    "text",
    [
        "```json5\n[334, 557, 468, 614]\n```",  # the 5 is the language's
        "```c++\n[334, 557, 468, 614]```",
        "``` json\r\n[334, 557, 468, 614]\r\n```\r\n",
        "````json\n[334, 557, 468, 614]\n````",
        "~~~\n[334, 557, 468, 614]\n~~~",
        '```json\n[\n  {\n    "bbox_2d": [\n      334,\n      557,\n      468,\n      614\n    ]\n  }\n]\n```',
        "{'bbox_2d': [334, 557, 468, 614,],}",
        "[[334, 557, 468, 614],]",
        "(334, 557, 468, 614)",
        "[334,\u00a0557,\u2009468,\u3000614]",
        "[3.34E+2, 5570e-1, +468, 614.]",
        "[[334., +557, 468.0, 6.14e2]]",
        "{'bbox_2d': [334., 557., 468., 614.], 'label': None, 'sure': True}",
        "\ufeff[334, 557,\u200b 468, 614]\u200f",
    ],
)
def test_one_box_however_it_is_wrapped(text):
    assert parse_boxes(text) == [BOX]


@pytest.mark.parametrize(
    "text",
    [
        "```json\n[1, 2, 3, 4]\n~~~",
        "```json\n[1, 2, 3, 4]",
        "[1, 2, 3, 4]\n```",
        "````\n[1, 2, 3, 4]\n```",
        "```\n[1, 2, 3, 4]\n```\n[5, 6, 7, 8]",
        "```\n```json\n[1, 2, 3, 4]\n```\n```",
        "~~~\n[1, 2, 3, 4]\n~~~\n~~~\n[5, 6, 7, 8]\n~~~",
        "`[1, 2, 3, 4]`",
    ],
)
def test_fences_that_do_not_wrap_the_whole_answer_are_no_answer(text):
    assert parse_boxes(text) is None
    assert parse_numbers(text) is None


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("[\u22125, 10.5, 30, 40]", [-5.0, 10.5, 30.0, 40.0]),  # the minus sign
        ("[\u20135, 10.5]", [-5.0, 10.5]),  # an en dash in its place
        ("\uff0d5\uff0c\uff11\uff10\uff0e\uff15", [-5.0, 10.5]),  # full width
        ("[1e2, 1E+2, -1e-2]", [100.0, 100.0, -0.01]),
        ("0, -0.5, 00.5", None),
        ("[1,000, 2, 3]", None),  # not 1 and 0
        ("1 000", None),
        ("1_000", None),
        ("3\u20135", None),  # a range
        ("10\u00b2", None),  # not 102
        ("[.5, 1., -.5, +2]", [0.5, 1.0, -0.5, 2.0]),
        ("[1.000.000, 2]", None),
        ("[1+1, 2]", None),
        ("[--1, 2]", None),
        ("[1 .5]", [1.0, 0.5]),
        ("\u2460, 2", None),  # a circled one
        ("\u0663, \u0664", None),
        ("1/2", None),
        ("50%", None),
        ("0x10", None),
        ("10px, 20px", None),
        ("[,]", None),
        ("[1,,2]", [1.0, 2.0]),
        ("[1e400, 2]", None),
        ("nan, 2", None),
    ],
)
def test_no_number_is_read_that_nobody_wrote(text, numbers):
    assert parse_numbers(text) == numbers


def test_nothing_there_is_said_by_an_empty_list_only():
    assert parse_boxes("[]") == parse_points("[ ]") == []
    for text in ("[,]", "{}", "[[]]", "[null]", "()()", "``````", "[[0, 0, 0, 0], []]"):
        assert not parse_boxes(text), text
        assert parse_boxes(text) is None, text


def test_labels_keep_their_commas_and_quotes():
    assert parse_value('{"label": "a, [b,c] \'d\'"}') == {"label": "a, [b,c] 'd'"}
    assert parse_value("{'label': 'a (b), None, +1. and,]'}") == {"label": "a (b), None, +1. and,]"}
    assert parse_value("{'label': 'say \"hi\"', 'n': 1}") == {"label": 'say "hi"', "n": 1}
