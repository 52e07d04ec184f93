"""Agents train in two processes: uneven turns hang nobody, and a synchronised group spans both."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from paths import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sync", [True, False])
def test_two_steps_of_the_search_demo(tmp_path, sync):
    pytest.importorskip("bm25s")
    pandas = pytest.importorskip("pandas")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py"]
    command += ["--config", "config/recipes/tree_grpo_demo.yaml", "--output_dir", str(tmp_path), "--max_steps", "2"]
    command += ["--per_device_train_batch_size", "12", "--advantage", "inter", "--log_completions", "true"]
    command += ["--sync_prompt_across_ranks", str(sync), "--ddp_timeout", "90"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "tool/calls" in line]
    assert len(steps) == 2 and all(line["tool/calls"] > 0 for line in steps)
    tables = sorted((tmp_path / "completions").glob("*.parquet"))
    assert len(tables) == 2
    for table in map(pandas.read_parquet, tables):
        assert len(table) == 24
        rewards = 0.2 * table["format_reward"] + table["accuracy_reward"]
        for _, rows in table.groupby("prompt"):
            own = rewards[rows.index]
            assert len(rows) == (12 if sync else 6)
            wanted = (own - own.mean()) / (own.std() + 1e-4)
            np.testing.assert_allclose(rows["advantage"], wanted, atol=1e-3)
