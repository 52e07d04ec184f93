"""The trajectory task's rewards: spellings of a path, the form of a completion, and degenerate completions."""

import time

import pytest

from task.trajectory_sharerobot import TASK_CONFIG, accuracy_reward, format_reward

SIZE = {"image_size": (640, 480), "processed_size": (644, 476)}
PATH = [[10.0, 20.0], [30.0, 40.0]]


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
