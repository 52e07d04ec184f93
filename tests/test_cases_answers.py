"""Answers as policies really write them: the same numbers in every spelling, and no number nobody wrote."""

import random
import time

import pytest

from task.parsing.answers import answer_text, parse_boxes, parse_numbers, parse_points, parse_value, split_completion
from task.trajectory_sharerobot import TASK_CONFIG, accuracy_reward, format_reward

BOX = [334.0, 557.0, 468.0, 614.0]
SIZE = {"image_size": (640, 480), "processed_size": (644, 476)}
PATH = [[10.0, 20.0], [30.0, 40.0]]


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


def said(answer, thought="t"):
    return f"<think>{thought}</think><answer>{answer}</answer>"


@pytest.mark.parametrize(
    "answer",
    [
        "[[10, 20], [30, 40]]",
        "[[10, 20],\n [30, 40],\n]",
        "```json\n[[10, 20], [30, 40]]\n```",
        "(10, 20), (30, 40)",
        "[{'point_2d': [10, 20]}, {'point_2d': [30, 40]}]",
        "[[1e1, 2e1], [30.0, 40.]]".replace("40.]", "40.0]"),
    ],
)
def test_a_path_scores_the_same_in_every_spelling(answer):
    assert format_reward(said(answer), PATH, **SIZE) == 1.0
    score, logged = accuracy_reward(said(answer), PATH, **SIZE)
    assert (score, logged["parse_fail"]) == (1.0, 0)


@pytest.mark.parametrize(
    "completion",
    [
        said("[[1, 2], [3, 4]]") + said("[[1, 2], [3, 4]]"),
        said("[[1, 2], [3, 4]]") + "<think>more</think>",
        "<think>" + said("[[1, 2], [3, 4]]") + "</think>",
        said(said("[[1, 2], [3, 4]]")),
        said("[[1, 2], [3, 4]]", "so <think> again"),
        said("[[1, 2], [3, 4]]", "the form is <answer> </answer>"),
        said("<answer>[[1, 2], [3, 4]]"),
        said("[[1, 2], [3, 4]]</answer>"),
        "<think>t</think><answer>[[1, 2], [3, 4]]",
        "<think>t</think>[[1, 2], [3, 4]]</answer>",
        "<answer>[[1, 2], [3, 4]]</answer><think>t</think>",
        "<think>t<answer>[[1, 2], [3, 4]]</answer></think>",
        said("[[1, 2], [3, 4]]").upper(),
        said("[[1, 2], [3, 4]]").replace("<answer>", "<answer >"),
        said("[[1, 2], [3, 4]]").replace("</answer>", "</ answer>"),
        "```\n" + said("[[1, 2], [3, 4]]") + "\n```",
        said("[[1, 2], [3, 4]]").replace("think", "analysis"),
    ],
)
def test_only_one_of_each_tag_in_order_is_the_form(completion):
    assert format_reward(completion, PATH, **SIZE) == 0.0


def test_the_prompts_own_tags_are_never_scored():
    """The instructions hold the very tags that are looked for: on prompt + completion the first pair would be empty."""
    prompt = TASK_CONFIG["grpo_template"].replace("{Question}", "Move to the cup.")
    assert "<answer> </answer>" in prompt
    completion = said("[[10, 20], [30, 40]]")
    assert accuracy_reward(completion, PATH, **SIZE)[0] == format_reward(completion, PATH, **SIZE) == 1.0
    assert format_reward(prompt + completion, PATH, **SIZE) == 0.0
    assert format_reward("I do not know", PATH, **SIZE) == 0.0


HOSTILE = {
    "answers": "<answer>" * 16_000,
    "thoughts": "<think>" * 16_000,
    "lists": "[1,2,3," * 20_000,
    "spaces": " " * 100_000,
    "closed answers": "<answer></answer>" * 8_000,
    "closed thoughts": "<think></think>" * 8_000,
    "alternating": "<think></think><answer>1</answer>" * 4_000,
    "closings": "</answer>" * 16_000,
    "half tags": "<answer" * 16_000,
    "angles": "<" * 100_000,
    "newlines": "\n" * 100_000,
    "nuls": "\0" * 100_000,
    "answer of commas": said("," * 19_000),
    "answer of commas and spaces": said("[" + ", " * 9_000 + "]"),
    "answer of last commas": said("[1,]," * 3_900),
    "answer of fences": said("`" * 19_000),
    "answer of tildes": said("~" * 19_000),
    "answer of fenced fences": said("```a\n" * 3_900),
    "answer of letters": said("```" + "a" * 19_000),
    "answer of dashes": said("\u2212" * 19_000),
    "answer of zeros": said("0" * 19_000),
    "answer of points": said("[" + "[0,0]," * 3_100 + "[0,0]]"),
    "answer of exponents": said("[" + "1e9," * 4_700 + "1]"),
    "answer of quotes": said("'" + "\\'" * 9_000),
    "answer of brackets": said("[(" * 9_000),
    "answer of objects": said('{"point_2d":' * 1_500),
    "answer of surrogates": said("\ud800" * 19_000),
    "thought of answers": said("[[1, 2], [3, 4]]", "<answer>" * 12_000),
}


def cost(score, *args, **kw) -> float:
    """CPU seconds of one call, the least of three: a garbage collection of everything loaded is not the parser's."""
    seen = []
    for _ in range(3):
        started = time.process_time()
        score(*args, **kw)
        seen.append(time.process_time() - started)
    return min(seen)


@pytest.mark.parametrize("name", HOSTILE)
def test_degenerate_completions_are_scored_zero_and_at_once(name):
    text = HOSTILE[name]
    assert cost(format_reward, text, PATH, **SIZE) < 0.1
    assert cost(accuracy_reward, text, PATH, **SIZE) < 0.1
    assert format_reward(text, PATH, **SIZE) == 0.0
    assert (accuracy_reward(text, PATH, **SIZE)[0] == 0.0) != (name == "thought of answers")


def test_time_grows_with_length_and_not_faster():
    """Bodies at the limit of what is read, made of few pieces repeated: one that costs n squared takes seconds."""
    draw = random.Random(0)
    pieces = [*"[](){},'\"`~-.0 1e\n\\", "<think>", "</think>", "<answer>", "</answer>", "```", "[1,2],"]
    for _ in range(40):
        unit = "".join(draw.choices(pieces, k=draw.randint(1, 4)))
        body = unit * (19_000 // len(unit))
        for parse in (split_completion, answer_text, parse_points):
            started = time.process_time()
            parse(body)
            assert time.process_time() - started < 0.5, unit
