"""The benchmark of one training step runs and reports what it promises."""

import json
import subprocess
import sys

import pytest
from paths import ROOT


@pytest.mark.slow
def test_metrics_of_a_small_case(tmp_path):
    out = tmp_path / "metrics.json"
    sizes = ["--grid", "8", "--thought", "20", "--answer", "8", "--text_tokens", "20"]
    command = [sys.executable, "scripts/bench/train_step.py", *sizes, "--json", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    metrics = json.loads(out.read_text())
    # Prompt of 38 tokens: 20 of text, 16 of the picture, 2 around it.
    assert metrics["row_tokens"] == 16 * (38 + 28)
    assert metrics["slots"] == pytest.approx(37 + 4 * 20 + 16 * 8, abs=4)  # two thoughts may begin alike
    assert metrics["token_ratio"] == metrics["row_tokens"] / metrics["slots"]
    assert metrics["max_logprob_gap"] <= 5e-6
    assert metrics["max_grad_gap"] <= 1e-5
    assert metrics["speedup"] > 1
    assert 0 < metrics["peak_memory_ratio"] < 1
