"""Starts a script as one process, or as several on this machine with torch's launcher."""

from __future__ import annotations

import os
import subprocess
import sys

QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def start(script: list[str], processes: int, timeout: float) -> str:
    """Runs `script` (path and arguments) to its end and returns its output.

    Raises RuntimeError with the end of the output if it fails, and subprocess.TimeoutExpired after `timeout` seconds.
    """
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--standalone"]
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]  # DeepSpeed looks for ninja there
    environment = os.environ | QUIET | {"PATH": path, "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [*command, *script], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        try:
            output, _ = running.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            running.terminate()  # torch's launcher ends its processes
            raise
    if running.returncode:
        raise RuntimeError(f"{' '.join(script)} on {processes} process(es) failed:\n{output[-6000:]}")
    return output
