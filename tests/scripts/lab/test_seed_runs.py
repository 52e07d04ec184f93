"""Runs over seeds: a run is made once, and never from one cut short."""

import json
import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "lab"))
from seed_runs import TokenBudget, make_runs


def test_runs_are_made_once(tmp_path, capsys):
    made = []

    def run(name, seed):
        made.append((name, seed))
        return {"steps": 3, "train_tokens": 100, "em": seed / 10}

    for _ in range(2):
        make_runs(tmp_path, ["chain", "tree"], [1, 2], 100, run)
    assert made == [("chain", 1), ("tree", 1), ("chain", 2), ("tree", 2)]
    assert "tree-seed2.json" in capsys.readouterr().out


def test_a_run_cut_short_is_not_written_and_an_untrained_one_is(tmp_path):
    with pytest.raises(SystemExit, match=r"tree-seed1.json not written: stopped after 40 of 100 tokens"):
        make_runs(tmp_path, ["tree"], [1], 100, lambda name, seed: {"steps": 2, "train_tokens": 40})
    assert not list(tmp_path.iterdir())
    make_runs(tmp_path, ["untrained"], [1], 100, lambda name, seed: {"steps": 0, "train_tokens": 0})
    assert json.loads((tmp_path / "untrained-seed1.json").read_text())["steps"] == 0


def test_a_budget_of_tokens_stops_after_the_step_that_exceeds_it():
    from transformers import TrainerControl

    budget, control, stops = TokenBudget(5_000, prompts=16), TrainerControl(), []
    for tokens in (150.0, 150.0, 150.0):
        budget.on_log(None, None, control, logs={"tokens/generated": tokens})
        stops.append(control.should_training_stop)
    budget.on_log(None, None, control, logs={"train_runtime": 1.0})
    assert stops == [False, False, True] and budget.tokens == 7_200
