"""vLLM colocated in two processes: each has an engine of its own, on the same weights, for its own prompts."""

from __future__ import annotations

import json

import pytest
from on_two_processes import run_on_two_processes

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sync", [True, False])
def test_two_steps_of_the_demo(tmp_path, sync):
    pytest.importorskip("vllm")
    pandas = pytest.importorskip("pandas")
    flags = ["--config", "config/recipes/grpo_ma_demo.yaml", "--output_dir", tmp_path, "--max_steps", 2]
    flags += ["--use_vllm", "true", "--vllm_gpu_memory_utilization", 0.05, "--log_completions", "true"]
    flags += ["--logging_steps", 1, "--sync_prompt_across_ranks", sync, "--ddp_timeout", 120]
    run_on_two_processes("train.py", *flags, timeout=400)
    steps = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in steps if "sampling/policy_gap_max" in line]
    assert len(steps) == 2 and all(line["sampling/policy_gap_max"] < 1e-2 for line in steps)
    table = pandas.read_parquet(sorted((tmp_path / "completions").glob("*.parquet"))[0])
    half = len(table) // 2
    first, second = table[:half], table[half:]
    assert (set(first["prompt"]) == set(second["prompt"])) == sync
    assert set(first["completion"]) != set(second["completion"]), "each process draws its own"
