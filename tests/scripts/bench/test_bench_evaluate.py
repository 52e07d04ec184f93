"""Batches change no completion of 64 mixed records, and take a fraction of the time."""

import json
import subprocess
import sys

import pytest
from paths import ROOT


@pytest.mark.slow
def test_batches_change_nothing_and_save_time(tmp_path):
    out = tmp_path / "evaluate.json"
    command = [sys.executable, "scripts/bench/evaluate.py", "--max_new_tokens", "64", "--json", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=280)  # it asserts that both are equal
    metrics = json.loads(out.read_text())
    assert (metrics["records"], metrics["tasks"], metrics["tokens"]) == (64, 6, 64 * 64)
    assert metrics["speedup"] > 2.5
