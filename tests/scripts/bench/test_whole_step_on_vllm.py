"""whole_step.py --vllm: both trainers take their step with vLLM, for the same number of tokens."""

import pytest
from small_benchmarks import PROMPT, ROWS, TREE, metrics_of

pytest.importorskip("vllm")


def test_both_sides_sample_with_vllm(tmp_path):
    metrics = metrics_of("whole_step", tmp_path, "--vllm")
    assert (metrics["leaves"], metrics["unique_tokens"]) == (4, PROMPT + TREE)
    assert metrics["row_tokens"] == 4 * PROMPT + ROWS
    assert metrics["speedup"] == pytest.approx(metrics["stock_s"] / metrics["ours_s"])
    assert metrics["tower_calls_per_picture"] == 1, "of the policy's own tower"
