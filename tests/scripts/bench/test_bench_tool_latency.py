"""The benchmark of slow tools runs and reports what it promises."""

import json
import subprocess
import sys

import pytest
from paths import ROOT


@pytest.mark.slow
def test_the_benchmark_times_the_same_trees_both_ways(tmp_path):
    out = tmp_path / "metrics.json"
    flags = ["--think_num", "2", "--answer_num", "2", "--answer", "4", "--turns", "2", "--latency", "0.3"]
    command = [sys.executable, "scripts/bench/tool_latency.py", *flags, "--json", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    metrics = json.loads(out.read_text())
    assert metrics["calls"] == 4
    assert metrics["one_after_another_s"] > 1.2
    assert metrics["speedup"] == metrics["one_after_another_s"] / metrics["beside_s"]
