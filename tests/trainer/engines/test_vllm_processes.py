"""vLLM colocated in two processes: each has an engine of its own, on the same weights, for its own prompts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from paths import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sync", [True, False])
def test_two_steps_of_the_demo(tmp_path, sync):
    pytest.importorskip("vllm")
    pandas = pytest.importorskip("pandas")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py"]
    command += ["--config", "config/recipes/grpo_ma_demo.yaml", "--output_dir", str(tmp_path), "--max_steps", "2"]
    command += [
        "--use_vllm",
        "true",
        "--vllm_gpu_memory_utilization",
        "0.05",
        "--log_completions",
        "true",
        "--logging_steps",
        "1",
    ]
    command += ["--sync_prompt_across_ranks", str(sync), "--ddp_timeout", "120"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    steps = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in steps if "sampling/policy_gap_max" in line]
    assert len(steps) == 2 and all(line["sampling/policy_gap_max"] < 1e-2 for line in steps)
    table = pandas.read_parquet(sorted((tmp_path / "completions").glob("*.parquet"))[0])
    half = len(table) // 2
    first, second = table[:half], table[half:]
    assert (set(first["prompt"]) == set(second["prompt"])) == sync
    assert set(first["completion"]) != set(second["completion"]), "each process draws its own"
