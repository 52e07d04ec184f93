"""Advice on K and M from a run's log and on simulated tasks; what cannot be advised on is refused."""

import json
import sys

import numpy as np
import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "lab"))
import advise

from trainer.budget.probe import Probe
from trainer.budget.recheck import NAMES


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["advise.py", *map(str, flags)])
        status = advise.main()
        return status, "".join(capsys.readouterr())

    return run


def write_log(folder, *lines) -> None:
    entries = [{"event": "start"}, *(dict(zip(NAMES, line, strict=True)) for line in lines)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in entries))


def test_a_log_is_averaged_and_advised_on(call, tmp_path):
    write_log(tmp_path, (0.01, 0.2, 50, 10), (0.03, 0.6, 70, 30))
    assert advise.probe_of_log(tmp_path) == Probe(0.02, 0.4, 60, 20)
    status, text = call("--run", tmp_path, "--json", tmp_path / "out.json")
    assert status == 0 and "budget 560 tokens per prompt" in text
    found = json.loads((tmp_path / "out.json").read_text())["candidates"]
    assert found[0]["error"] == min(one["error"] for one in found)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--budget", "50"), "--budget 50 is below the cost of two thoughts with one answer"),
        (("--unit", "seconds"), "a log has no seconds of single thoughts"),
        (("--think_num", "4"), "unknown argument --think_num"),
    ],
)
def test_what_cannot_be_advised_on_is_refused(call, tmp_path, flags, sentence):
    write_log(tmp_path, (0.02, 0.4, 60, 20))
    status, text = call("--run", tmp_path, *flags)
    assert status == 2 and sentence in text


def test_logs_without_variances_are_refused(call, tmp_path):
    status, text = call("--run", tmp_path)
    assert status == 2 and "log.jsonl does not exist" in text
    (tmp_path / "log.jsonl").write_text('{"event": "start"}\n')
    assert "has no variance/between" in call("--run", tmp_path)[1]


def test_simulated_tasks_have_the_gradient_of_their_softmax_and_affordable_pairs():
    prompts, thought, answer, budget = advise.simulated_task(np.random.default_rng(0))
    assert all(
        abs(prompt.gradient.sum()) < 1e-12 and prompt.probabilities.sum() == pytest.approx(1) for prompt in prompts
    )
    assert budget >= 3 * (thought + 2 * answer)
    between, within = advise.probed(prompts, np.random.default_rng(1))
    assert 0 < between < 0.25 and 0 < within < 0.25


@pytest.mark.slow
def test_the_advice_is_near_the_best_of_the_grid(monkeypatch):
    monkeypatch.setattr(advise, "PRECISE", 0.02)
    rows = advise.check(tasks=1, draws=1000, seed=3)
    assert all(1 <= row["ratio"] < 1.05 for row in rows)
