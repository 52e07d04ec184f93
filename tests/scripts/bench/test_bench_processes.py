"""The benchmark of two processes runs and reports what it promises."""

import json
import subprocess
import sys

import pytest
from paths import ROOT


@pytest.mark.slow
def test_metrics_of_two_steps(tmp_path):
    out = tmp_path / "metrics.json"
    command = [sys.executable, "scripts/bench/processes.py", "--steps", "2", "--rounds", "1", "--json", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=280)
    metrics = json.loads(out.read_text())
    assert metrics["ratio"] == metrics["prompts_per_second_2"] / metrics["prompts_per_second_1"]
    assert 1 < metrics["cpu_ratio"] < 2.5  # of one step; a process may have the shorter rollouts
