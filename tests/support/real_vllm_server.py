"""A real `vllm serve` on this machine, started by scripts/vllm_server.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paths import ROOT

from trainer.engines.vllm.server_http import ServerError, ServerHTTP

SIZES = ("--max-model-len", "1024", "--max-num-seqs", "64", "--gpu-memory-utilization", "0.1")
UP, DOWN = 300, 10  # seconds until it must answer, and to end before it is killed


@contextmanager
def real_vllm_server(model, *flags: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """(url, process) of a server that answers; it and its workers, one process group, end with the context.

    Args:
        model: folder of the model, of which it has random weights.
        flags: further ones of the script.

    Raises:
        AssertionError: it ended before it answered, or did not answer in time; with what it printed last.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "scripts/vllm_server.py", str(model), "--port", str(port), *SIZES, *flags]
    with tempfile.TemporaryDirectory() as folder, open(Path(folder, "log"), "w") as log:
        environment = os.environ | {"TMPDIR": folder}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, stdout=log, stderr=log)
        try:
            _wait_until_up(url, process, Path(log.name))
            yield url, process
        finally:
            _end(process)
            _free_shared_memory(Path(folder))


def _wait_until_up(url: str, process: subprocess.Popen, log: Path) -> None:
    http, limit = ServerHTTP(url, 10.0), time.monotonic() + UP
    while True:
        try:
            http.get("/health")
            return
        except ServerError:
            if process.poll() is not None or time.monotonic() > limit:
                raise AssertionError(f"the server did not start: {log.read_text()[-3000:]}") from None
            time.sleep(0.2)


def _end(process: subprocess.Popen) -> None:
    """Ends the group: asked first, since workers that are killed leave shared memory behind."""
    limit = time.monotonic() + DOWN
    with suppress(ProcessLookupError):  # the group is empty
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < limit:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_shared_memory(folder: Path) -> None:
    """What vLLM's CPU build leaves behind: the memory through which workers exchange tensors, named as their files."""
    for file in folder.glob("vllm_dist_*"):
        for memory in Path("/dev/shm").glob(f"{file.name}-*"):
            memory.unlink()
