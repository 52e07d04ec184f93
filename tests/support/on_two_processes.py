"""Scripts on two processes of this machine, for tests."""

from __future__ import annotations

import os
import subprocess
import sys

from paths import ROOT


def run_on_two_processes(*script, timeout: float) -> None:
    """Runs a script with its arguments on two CPU processes; AssertionError with what they wrote if one fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += map(str, script)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
