"""Two checkouts are the same only where weights, metrics, settings and refusals are."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from checkout_differences import common, compare, differs, report, weights
from wrong_settings import FLAGS, LAUNCHER

SCRIPT = ROOT / "scripts" / "bench" / "compare_checkouts.py"


def run():
    return {
        "weights": {"a": torch.zeros(3), "b": torch.ones(2, 2, dtype=torch.bfloat16)},
        "log": [{"step": 1, "reward": 0.5, "grad_norm": 0.1, "step_time": 2.0}, {"event": "end"}],
        "lines": ["  method  grpo", "  beta  0.0"],
    }


def found(before, after, refused=([2, "no"], [2, "no"])):
    recipe = compare(before, after) | {"settings": common({"beta": "0.0"}, {"beta": "0.0"})}
    return {"recipes": {"demo": recipe}, "refusals": {"--beta -1": [*refused]}}


def test_equal_runs_are_equal():
    same = found(run(), run())
    assert not differs(same)
    assert "| demo | 2 | 0 | 0 | 1 | 2 / 0 / 0 + 0 | 1 / 0 / 0 + 0 | 2 / 0 + 0 |" in report(same)
    assert "1 of 1 wrong settings are refused in the same words" in report(same)


@pytest.mark.parametrize(
    ("change", "gap"),
    [
        (lambda side: side["weights"]["a"].__setitem__(0, 1e-30), 1e-30),
        (lambda side: side["weights"]["a"].__setitem__(0, -0.0), 0.0),  # equal as numbers, not as bits
        (lambda side: side["weights"].update(a=torch.zeros(3, dtype=torch.float64)), 0.0),
        (lambda side: side["weights"].update(a=torch.zeros(4)), 0.0),
        (lambda side: side["weights"].pop("a"), 0.0),
        (lambda side: side["log"][0].update(reward=0.5000001), 0.0),
    ],
)
def test_a_changed_run_differs(change, gap):
    after = copy.deepcopy(run())
    change(after)
    changed = found(run(), after)
    assert differs(changed)
    assert changed["recipes"]["demo"]["weights"]["max_difference"] == pytest.approx(gap, rel=1e-6)


def test_time_and_wording_may_differ_and_wording_is_shown():
    after = run()
    after["log"][0]["step_time"] = 3.0
    after["lines"][1] = "  beta  0"
    reworded = found(run(), after, ([2, "no"], [2, "never"]))
    assert not differs(reworded)
    assert "| `--beta -1` | 2: no | 2: never |" in report(reworded)
    assert "lines, after only:\n\n- `beta  0`" in report(reworded)


def test_a_metric_is_reported_by_its_largest_gap_over_steps():
    before, after = run(), run()
    for side, values in ((before, (0.5, 1.0)), (after, (0.5625, 1.25))):
        side["log"] = [{"step": step, "reward": value, "kl": None} for step, value in enumerate(values, start=1)]
    after["log"][1]["kl"] = 0.0
    lines = report(found(before, after))
    assert "demo: reward differs by up to 0.25" in lines
    assert "demo: kl differs by up to inf" in lines


def test_another_exit_status_differs():
    assert differs(found(run(), run(), ([2, "no"], [0, ""])))


def test_nan_in_the_same_place_is_equal():
    nan = {"a": torch.tensor([float("nan")])}
    assert weights(nan, copy.deepcopy(nan))["differing"] == []


def test_a_folder_without_the_project_is_refused(tmp_path):
    command = [sys.executable, SCRIPT, tmp_path]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2
    assert f"{tmp_path} holds no train.py" in refused.stderr


@pytest.mark.slow
def test_a_checkout_equals_itself(tmp_path):
    out = tmp_path / "compare.json"
    command = [sys.executable, SCRIPT, ROOT, "--recipes", "grpo_ma_demo"]
    done = subprocess.run([*command, "--steps", "2", "--json", out], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr + done.stdout
    result = json.loads(out.read_text())
    recipe = result["recipes"]["grpo_ma_demo"]
    assert recipe["weights"]["equal"] > 0
    assert recipe["trained"] == 2
    assert len(result["refusals"]) == sum(map(len, FLAGS.values())) + len(LAUNCHER)
    assert all(status == 2 for pair in result["refusals"].values() for status, _ in pair)
