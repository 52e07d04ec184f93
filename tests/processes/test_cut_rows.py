"""Two processes whose rows need different numbers of cuts wait for each other and update alike."""

import os
import subprocess
import sys

import pytest
import torch
from paths import ROOT


@pytest.mark.slow
def test_cuts_on_one_process_only_change_no_weight(tmp_path):
    """DDP syncs buffers in every forward pass: with unequal numbers of passes this run would hang."""
    ends = {}
    for how in ("cut", "whole"):
        folder = tmp_path / how
        folder.mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
        command += [str(ROOT / "tests/support/cut_rows_case.py"), str(folder), how]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        ends[how] = [torch.load(folder / f"{rank}.pt") for rank in range(2)]
    assert [end["plans"][0] > 1 for end in ends["cut"]] == [True, False]
    assert [end["plans"][0] for end in ends["whole"]] == [1, 1]
    for name, weight in ends["whole"][0]["weights"].items():
        for end in ends["cut"]:
            assert (end["weights"][name] - weight).abs().max() < 1e-6, name
