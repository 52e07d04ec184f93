"""Puzzles of reasoning-gym through its own verifiers."""

import json
import math
import random

import pytest
from paths import ROOT
from task_cases import DEGENERATE, metrics, mutated, prediction, said

from scripts.demo.make_text_records import PUZZLES
from task import reasoning_gym
from task.reasoning_gym import accuracy_reward, format_reward, parse_answer
from task.runners.judge import Judge, Verdict

NAME = "reasoning-gym"
SUM = {"dataset": "chain_sum", "entry": {"question": "4 + 3 = ?", "answer": "7", "metadata": {}}}


@pytest.fixture
def verifier():
    pytest.importorskip("reasoning_gym", reason="the extra `reasoning` is not installed")


def shipped() -> list[dict]:
    folder = ROOT / "metadata" / "demo" / "reasoning"
    return [json.loads(line) for split in ("train", "test") for line in (folder / f"{split}.jsonl").open()]


def test_shipped_puzzles_take_their_own_answer_and_no_other(verifier):
    records = shipped()
    assert {record["answer"]["dataset"] for record in records} == set(PUZZLES)
    for record in records:
        sol = record["answer"]
        assert accuracy_reward(said(sol["entry"]["answer"]), sol)[0] == 1.0, record["id"]
        assert accuracy_reward(said("#"), sol)[0] < 0.1, record["id"]


def test_a_box_is_no_part_of_the_answer(verifier):
    assert accuracy_reward(said(r"\boxed{7}"), SUM)[0] == 1.0  # the verifier alone gives 1 / 9
    assert accuracy_reward(said(r"\boxed{7} \boxed{8}"), SUM) == (0.0, {"parse_fail": 1, "timeout": 0})


def test_entries_that_no_verifier_reads(verifier):
    with pytest.raises(ValueError, match="record r9: the answer must be"):
        accuracy_reward(said("7"), "7", id="r9")
    bad = {"dataset": "chain_sum", "entry": {"question": "4 + 3 = ?"}}
    with pytest.raises(ValueError, match="record r9: the verifier of 'chain_sum' cannot read the entry"):
        accuracy_reward(said("7"), bad, id="r9")
    assert accuracy_reward(said("7"), {"dataset": "no_such", "entry": {}}) == (None, {"verifier_lost": 1})
    assert accuracy_reward(said("7"), None) is None


def test_verdicts_become_scores(monkeypatch):
    class Says:
        def __init__(self, *verdict):
            self.verdict = Verdict(*verdict)

        def ask(self, *arguments):
            return self.verdict

    monkeypatch.setattr(reasoning_gym, "need", lambda *_: None)
    for verdict, expected in (
        (("ok", 0.3), (0.3, {"parse_fail": 0, "timeout": 0})),
        (("ok", 7.0), (1.0, {"parse_fail": 0, "timeout": 0})),
        (("limit",), (0.0, {"parse_fail": 0, "timeout": 1})),
        (("lost",), (None, {"verifier_lost": 1})),
    ):
        monkeypatch.setattr(reasoning_gym, "VERIFIER", Says(*verdict))
        assert accuracy_reward(said("7"), SUM) == expected


def test_form_and_degenerate_texts():
    assert format_reward(said("7"), SUM) == 1.0
    for text in [*DEGENERATE, said(""), said("7" * 4001)]:
        assert format_reward(text, SUM) == 0.0 and parse_answer(text) is None
        assert accuracy_reward(text, SUM) == (0.0, {"parse_fail": 1, "timeout": 0})


def test_metrics(monkeypatch):
    lost = prediction(NAME, None, SUM)
    rows = [lost | {"status": "ok", "prediction": "7", "accuracy": score} for score in (1.0, 0.5)]
    wanted = {"parse_failure_rate": 0.0, "solved": 0.5, "chain_sum_score": 0.75}
    assert metrics(NAME, *rows, lost) == wanted
    assert metrics(NAME, lost) == {}


@pytest.mark.parametrize("count", [30, pytest.param(1_000, marks=pytest.mark.slow)])
def test_mutated_completions(verifier, count):
    draw = random.Random(NAME)
    for _ in range(count):
        completion = mutated(said("7"), draw)
        form, (score, _) = format_reward(completion, SUM), accuracy_reward(completion, SUM)
        assert form in (0.0, 1.0) and 0.0 <= score <= 1.0 and math.isfinite(score)


def test_a_judge_that_is_not_there_is_lost():
    verdict = Judge("no_such_judge").ask("x")
    assert verdict.status == "lost" and "FileNotFoundError" in verdict.reason
