"""Comparisons at an equal budget: lines and their sizes, what a run spends, the table, and runs that crash."""

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml
from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "lab"))
import comparison
from chart import chart
from comparison import Run, difference, differences, spikes, summary
from comparison_lines import changes_of, line_of, own_line, recipe_for
from comparison_pages import write_pages

from task.errors import UserError

DEMO = yaml.safe_load((ROOT / "config/recipes/grpo_ma_demo.yaml").read_text())


def flags(name: str, recipe=DEMO, prompts=None) -> dict:
    return recipe_for(line_of(name), recipe, prompts)[1]


def test_lines_have_the_prompts_of_the_recipe_and_its_leaves_where_the_method_leaves_them_open():
    sizes = {name: flags(name)["per_device_train_batch_size"] for name in ("T4A1", "T4A4", "T16A1", "tree_adv")}
    assert sizes == {"T4A1": 16, "T4A4": 64, "T16A1": 64, "tree_adv": 64}
    assert flags("T4A1", prompts=2)["per_device_train_batch_size"] == 8
    chains = flags("grpo")
    assert (chains["num_generations"], chains["max_completion_length"]) == (16, 160)
    assert recipe_for(own_line(["few", "tree_adv", "num_generations=8"]), DEMO, None)[1] == {
        "method": "tree_adv", "num_generations": 8, "max_completion_length": 160, "per_device_train_batch_size": 32,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: line_of("T4"), "line 'T4': write T4A4"),
        (lambda: own_line(["mine"]), "write NAME BASE key=value"),
        (lambda: own_line(["untrained", "T4A4"]), "write NAME BASE key=value"),
        (lambda: changes_of(["beta"]), "'beta' is not a setting: write key=value"),
        (lambda: changes_of(["beta="]), "'beta=' is not a setting: write key=value"),
        (lambda: recipe_for(line_of("T4A4"), {"method": "grpo"}, None), "max_answer_length and max_thought_length"),
    ],
)
def test_lines_that_cannot_be_run_are_refused(call, sentence):
    with pytest.raises(UserError, match=sentence):
        call()


def write_run(folder, seed: int, gain: float, seconds: float, records: int = 40, steps: int = 20) -> None:
    rng = np.random.default_rng(seed)
    folder.mkdir()
    base = rng.random(records)
    items = {f"r{i}": {"accuracy": float(base[i] + gain), "tokens": 30.0} for i in range(records)}
    for i in range(10):
        items[f"r{i}"]["accuracy of shape"] = 0.25 + gain
    totals = [{"step": s, "tokens": 100 * s, "leaves": 4 * s, "seconds": seconds * s} for s in range(1, steps + 1)]
    log = [{"step": s, "reward": s / steps, "grad_norm": 1.0, "tokens/unique": 50, "tokens/trained": 200} for s in
           range(1, steps + 1)]  # fmt: skip
    log[5]["grad_norm"] = 40.0
    (folder / "result.json").write_text(json.dumps({"seed": seed, "items": items, "spent": totals[-1]}))
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in totals))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))


@pytest.fixture
def runs(tmp_path):
    for seed in (1, 2, 3):
        write_run(tmp_path / f"T4A1-seed{seed}", seed, gain=0.0, seconds=1.0)
        write_run(tmp_path / f"T4A4-seed{seed}", seed, gain=0.1, seconds=1.3)
    return comparison.read_runs(tmp_path, ["T4A1", "T4A4", "T16A1"])


def test_differences_are_paired(runs):
    found = difference(runs["T4A1"], runs["T4A4"], "accuracy")
    assert found["difference"] == pytest.approx(0.1) and found["seeds"] == 3
    assert found["interval"] == pytest.approx([0.1, 0.1], abs=1e-9)  # records differ by far more than 0.1
    assert list(differences(runs, "accuracy")) == ["T4A4 - T4A1"]
    assert difference(runs["T4A1"][:1], runs["T4A4"][1:], "accuracy") is None


def test_costs_spikes_and_curves_are_those_of_the_logs(runs):
    rows = summary(runs, "accuracy", "T4A1")
    assert rows["T4A4"]["relative_cost"] == pytest.approx(1.3) and rows["T4A4"]["per_step"]["unique"] == 0.25
    assert spikes(runs["T4A1"][0]) == (pytest.approx(40 / (59 / 20)), 1) and rows["T4A1"]["spikes"] == 3
    points = comparison.curve(runs["T4A4"], "reward", "seconds")
    assert points[0][0] == pytest.approx(1.3) and points[-1][0] == pytest.approx(26)
    assert points[10][1] == pytest.approx(points[10][0] / 26, abs=0.05)


def test_pages_show_crashed_runs(runs, tmp_path):
    rows, pairs = summary(runs, "accuracy", "T4A1"), differences(runs, "accuracy")
    crashed = {"T16A1": ["status 1: out of memory"]}
    text = write_pages(tmp_path, "demo", "command", rows, pairs, crashed, runs, "accuracy", "T4A1")
    assert "| T16A1 | 0, 1 crashed |" in text and "out of memory" in text
    assert {len(line.split("|")) for line in text.splitlines() if line.startswith("| T")} == {16, 6, 4}
    assert "| line | accuracy of shape |" in text and "| T4A4 | 0.3500 |" in text
    assert "<svg" in (tmp_path / "comparison.html").read_text() and (tmp_path / "reward-tokens.svg").exists()


def test_a_chart_of_nothing_and_of_one_point():
    assert "no points" in chart({"a": []}, "t", "x", "y")
    assert "circle" in chart({"a": [(1, 2)]}, "t", "x", "y", log=True)


@pytest.mark.slow
def test_runs_stop_at_the_budget_go_on_and_are_tabled(tmp_path):
    few = (ROOT / "metadata/demo/trajectory/test.jsonl").read_text().splitlines(keepends=True)[:4]
    (tmp_path / "few.jsonl").write_text("".join(few))
    held_out = {"datasets": [{"json_path": "few.jsonl", "data_root": str(ROOT / "metadata/demo/trajectory")}]}
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(held_out))
    command = [sys.executable, str(ROOT / "scripts/lab/compare.py"), "--recipe", "config/recipes/grpo_ma_demo.yaml"]
    command += ["--methods", "T2A2,T2A1", "--line", "broken", "T2A2", "learning_rate=-1", "--budget", "tokens=500"]
    command += ["--seeds", "1", "--samples", "1", "--prompts", "1", "--test", str(tmp_path / "few.yaml")]
    command += ["--output_dir", str(tmp_path)]
    first = subprocess.run([*command, "--runs", "2"], cwd=ROOT, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    done = tmp_path / "T2A2-seed1"
    spent = json.loads((done / "result.json").read_text())["spent"]
    steps = [json.loads(line) for line in (done / "steps.jsonl").read_text().splitlines()]
    assert spent["tokens"] >= 500 > steps[-2]["tokens"] and spent == steps[-1]
    assert len(Run(done).items) == 4 and not (tmp_path / "T2A1-seed1").exists()
    written = (done / "result.json").stat().st_mtime_ns
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert second.returncode == 0 and (done / "result.json").stat().st_mtime_ns == written
    assert "| T2A1 | 1 |" in second.stdout and "| broken | 0, 1 crashed |" in second.stdout
