"""Agents train in two processes: uneven turns hang nobody, and a synchronised group spans both."""

from __future__ import annotations

import json

import numpy as np
import pytest
from on_two_processes import run_on_two_processes

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sync", [True, False])
def test_two_steps_of_the_search_demo(tmp_path, sync):
    pytest.importorskip("bm25s")
    pandas = pytest.importorskip("pandas")
    flags = ["--config", "config/recipes/tree_grpo_demo.yaml", "--output_dir", tmp_path, "--max_steps", 2]
    flags += ["--per_device_train_batch_size", 12, "--advantage", "inter", "--log_completions", "true"]
    flags += ["--sync_prompt_across_ranks", sync, "--ddp_timeout", 90]
    run_on_two_processes("train.py", *flags, timeout=240)
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
