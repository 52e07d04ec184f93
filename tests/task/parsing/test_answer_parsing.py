"""Parsers against what models write: forms that must be read, forms that must not, and time."""

import json
import random
import time

import pytest

from task.parsing.answers import (
    MAX_ANSWER_CHARS,
    answer_text,
    normal_text,
    parse_boxes,
    parse_numbers,
    parse_points,
    parse_value,
    split_completion,
    thought_tags,
)

BOX = [334.0, 557.0, 468.0, 614.0]


@pytest.mark.parametrize(
    ("completion", "parts"),
    [
        ("<think>a</think><answer>1</answer>", ("a", "1")),
        ("\n<think>a\nb</think>\n\n<answer>\n1\n</answer>\n", ("a\nb", "\n1\n")),
        ("<think></think><answer></answer>", ("", "")),
        ("<think>a</think><answer>1</answer><think>b</think><answer>2</answer>", None),
        ("<think>a</think><answer>1", None),
        ("<think>a</think><answer><answer>1</answer>", None),
        ("<think>a</think><answer>1</answer>so", None),
        ("so<think>a</think><answer>1</answer>", None),
        ("<think>a</think>so<answer>1</answer>", None),
        ("<Think>a</Think><Answer>1</Answer>", None),
        ("<think>I write <answer> next</think><answer>1</answer>", None),
        ("<answer>1</answer><think>a</think>", None),
        ("</think>a<think><answer>1</answer>", None),
        ("<think>a<answer>1</answer></think>", None),
        ("＜think＞a＜/think＞<answer>1</answer>", None),
        ("I do not know", None),
        ("", None),
    ],
)
def test_form_is_one_thought_then_one_answer(completion, parts):
    assert split_completion(completion) == parts


def test_tags_follow_thought_end():
    assert thought_tags("</analysis>") == ("<analysis>", "</analysis>")
    completion = "<analysis>a</analysis><answer>1</answer>"
    assert split_completion(completion, "</analysis>") == ("a", "1")
    assert split_completion(completion) is None
    assert answer_text("<analysis>never closed <answer>1</answer>", "</analysis>") is None
    with pytest.raises(ValueError, match="cannot be told from <think>"):
        thought_tags("<think>")


@pytest.mark.parametrize(
    ("closing", "opening"),
    [
        ("[/REASONING]", "[REASONING]"),
        ("<|/think|>", "<|think|>"),
        ("{/plan}", "{plan}"),
        ("</a b>", "<a b>"),
        ("END OF THOUGHT", "<think>"),
        ("###", "<think>"),
        ("<|end_of_thought|>", "<think>"),
        ("\n---\n", "<think>"),
    ],
)
def test_any_text_that_can_be_told_from_the_tags_ends_a_thought(closing, opening):
    assert thought_tags(closing) == (opening, closing)
    assert split_completion(f"{opening}a{closing} <answer>1</answer>", closing) == ("a", "1")
    assert answer_text(f"{opening}a{closing} so <answer>1</answer>", closing) == "1"
    assert answer_text(f"{opening}never closed <answer>1</answer>", closing) is None
    assert split_completion(f"{opening}a{closing}b{closing}<answer>1</answer>", closing) is None


@pytest.mark.parametrize(
    "text", ["", " \n", "</think", "<answer>", "</answer>", "answer", "<", "a</answer>", "{Question}"]
)
def test_texts_that_prompts_or_parsers_cannot_hold_are_refused(text):
    with pytest.raises(ValueError, match=r"^thought_end=.*: give a text such as </think> or \[/REASONING\]$"):
        thought_tags(text)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<think>x</think><answer>[1,2,3,4]</answer>", "[1,2,3,4]"),
        ("<think>x</think> It is <answer> 7 </answer>.", "7"),
        ("<answer>7</answer>", "7"),
        ("<think>try <answer>1</answer></think><answer>2</answer>", "2"),
        ("<think>x <answer>7</answer>", None),
        ("<think>x</think><answer>  </answer>", None),
        ("<think>x</think><answer>1</answer><answer>2</answer>", None),
        ("<think>x</think></answer>7<answer>", None),
        ("<answer>7</answer><think>x</think>", None),
        ("7", None),
        ("", None),
    ],
)
def test_answer_text_is_more_lenient_than_the_form(completion, answer):
    assert answer_text(completion) == answer


@pytest.mark.parametrize(
    "text",
    [
        '{"bbox_2d": [334, 557, 468, 614], "label": "cup"}',
        '{\n  "bbox_2d": [334,\n 557, 468, 614],\n  "label": "cup"\n}',
        '[{"bbox_2d": [334, 557, 468, 614]}]',
        '```\n[{"bbox_2d": [334, 557, 468, 614]}]\n```',
        '```json\n[{"bbox_2d": [334, 557, 468, 614]}]\n```',
        '```JSON [{"bbox_2d": [334, 557, 468, 614]}]```',
        "[{'bbox_2d': [334, 557, 468, 614], 'label': 'the cup\\'s \"rim\"'}]",
        "{'bbox_2d': (334, 557, 468, 614)}",
        "[334, 557, 468, 614]",
        "[[334.0, 557, 4.68e2, 614]]",
        "334, 557, 468, 614",
        "[334 557 468 614]",
        "［３３４， ５５７， ４６８， ６１４］",
    ],
)
def test_one_box_in_many_spellings(text):
    assert parse_boxes(text) == [BOX]


@pytest.mark.parametrize(
    "text",
    [
        '[{"bbox_2d": [334, 557',
        "[334, 557, 468",
        "[334, 557, 468, 614",
        "['334, 557, 468, 614]",
        "```json\n[1, 2, 3, 4]\n```\n```json\n[5, 6, 7, 8]\n```",
        "Here: ```json\n[1, 2, 3, 4]\n```",
        "```[1, 2, 3, 4]",
        '["334", "557", "468", "614"]',
        "[true, 557, 468, 614]",
        "[NaN, 1, 2, 3]",
        "[1, 2, 3, Infinity]",
        "[1, 2, 3, 1e999]",
        "[1, 2, 3, " + "9" * 400 + "]",
        "[1, 2, 3, " + "9" * 5000 + "]",
        '[{"point_2d": [1, 2]}]',
        "[[1, 2, 3, 4], [1, 2, 3]]",
        "[[1, 2, 3, 4], null]",
        "box 1 2 3 4",
        "2020-01-02-03",
        "__import__('os').system('true')",
        "null",
        "",
        None,
        " " * 100,
        "[1, 2, 3, 4]" + " " * MAX_ANSWER_CHARS,
    ],
)
def test_what_is_no_box_is_none_and_not_zeros(text):
    assert parse_boxes(text) is None


def test_numbers_take_sign_and_decimals():
    assert parse_numbers("[-5, 10.5, 30, 40]") == [-5.0, 10.5, 30.0, 40.0]
    assert parse_numbers(" -.5 ") == [-0.5]
    assert parse_numbers("1 +2 3.") == [1.0, 2.0, 3.0]
    assert parse_numbers("[]") is None
    assert parse_numbers("1.2.3") is None


def test_points_and_empty_lists():
    assert parse_points("[[1, 2], [3.5, -4]]") == [[1.0, 2.0], [3.5, -4.0]]
    assert parse_points("(1, 2), (3, 4)") == [[1.0, 2.0], [3.0, 4.0]]
    assert parse_points('[{"point_2d": [1, 2]}]') == [[1.0, 2.0]]
    assert parse_points("[1, 2]") == [[1.0, 2.0]]
    assert parse_points("[1, 2, 3, 4]") is None  # a flat list is no path
    assert parse_points("[]") == [] and parse_boxes("[]") == []  # "nothing there" is an answer


def test_values_keep_their_types():
    assert parse_value('{"a": [1, "b", null, true]}') == {"a": [1, "b", None, True]}
    assert parse_value("('a', 'b')") == ["a", "b"]
    assert parse_value('{"a": {"b": [1e999]}}') is None


def test_normal_text_never_empties_a_visible_text():
    assert normal_text(" Garden\n PHLOX ") == "garden phlox"
    assert normal_text("Ａ") == "a" and normal_text("the") == "the"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("10²", "10^2"),
        ("10⁻³", "10^-3"),
        ("10ⁿ", "10^n"),
        ("10₂", "10_2"),
        ("log₂8", "log2 8"),
        ("1½", "1 1/2"),
        ("10①", "10 1"),
        ("H₂O", "h2o"),
        ("𝟏𝟐", "12"),
        ("１２", "12"),
        ("1ˢᵗ", "1st"),
    ],
)
def test_normal_text_keeps_numbers_apart(text, plain):
    assert normal_text(text) == plain


HOSTILE = [
    "<answer>" * 16_000,
    "<think>" * 16_000,
    "</think>" * 16_000,
    "[1,2,3," * 20_000,
    " " * 100_000,
    "<think>" + "<answer>" * 8_000 + "</think>" + "</answer>" * 8_000,
]

HOSTILE_BODIES = [
    "[1,2,3," * 2_800,
    "[" * 20_000,
    "(" * 10_000 + ")" * 10_000,
    '["]",' * 4_000,
    "[" + "-" * 19_000 + "1]",
    "9" * 20_000,
    "1e" * 10_000,
    "." * 20_000,
    "'" * 20_000,
    "'\\" * 10_000,
    '"' * 19_999,
    "{'a':" * 4_000,
    "```" * 6_000,
    "\ufdfa" * 1_000,
    "\x00\ud800[1,2]",
]


def cost(parse, text: str) -> float:
    """CPU seconds of one call, the least of three: a garbage collection of everything loaded is not the parser's."""
    seen = []
    for _ in range(3):
        started = time.process_time()
        parse(text)
        seen.append(time.process_time() - started)
    return min(seen)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_completions_cost_little(number):
    for parse in (split_completion, answer_text):
        assert parse(HOSTILE[number]) is None
        assert cost(parse, HOSTILE[number]) < 0.1


@pytest.mark.parametrize("number", range(len(HOSTILE_BODIES)))
def test_hostile_answers_cost_little(number):
    for parse in (parse_value, parse_numbers, parse_points, parse_boxes):
        assert cost(parse, HOSTILE_BODIES[number]) < 0.1
        assert parse(HOSTILE_BODIES[number]) is None or parse is parse_value


def test_random_texts_never_raise_and_points_are_always_pairs():
    draw = random.Random(0)
    pieces = [*"[](){},:'\"\\`-+.e019 \n\u00e9\ufe5b\ud800\x00", "<think>", "</think>", "<answer>", "</answer>"]
    pieces += ["true", "None", "NaN", "1e999", "point_2d", "```json", "[[1, 2], [3, 4]]"]
    found = 0
    for _ in range(3_000):
        text = "".join(draw.choices(pieces, k=draw.randint(0, 12)))
        split_completion(text)
        answer_text(text)
        points, boxes, numbers = parse_points(text), parse_boxes(text), parse_numbers(text)
        assert points is None or all(len(point) == 2 for point in points)
        assert boxes is None or all(len(box) == 4 for box in boxes)
        assert numbers is None or all(isinstance(value, float) for value in numbers)
        json.dumps([points, boxes, numbers], allow_nan=False)
        found += bool(points or numbers)
    assert found > 20  # the texts were not all nonsense


@pytest.mark.parametrize("tag", ["</think>", "</analysis>", "</思考>", "</think-1>"])
def test_closing_tags(tag):
    assert thought_tags(tag) == (tag.replace("/", "", 1), tag)
