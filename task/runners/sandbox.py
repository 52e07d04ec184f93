"""Runs a program that nobody has read against its tests, in processes that end with it.

The program runs below code_process.py in a session of its own: an empty environment, a fresh folder (with a fresh
parent) that is removed afterwards, and limits on processor, clock, memory, file size and output. Where the kernel
allows it (Linux with user namespaces and Landlock, no privileges needed) there is also no network, no sight of other
processes, which end with the sandbox, no writing outside the folder, and no reading outside the folder, Python, its
libraries and those of the system. `isolation()` says what holds here; where namespaces are refused, sockets are refused
by Python alone and left-over processes are looked for and killed; without Landlock, files can be read and written.

It guards against what a policy under training writes, not against an attacker. Objects whose operators contradict
themselves fail the test that compares or subtracts them, and replaced builtins are restored before the tests; but a
program that inspects the checker's frames, or names a function of its own like one the tests call, can
cheat.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CPU_SECONDS = 3  # of one process
WALL_SECONDS = 6.0  # of one program with all its tests
GUARD_SECONDS = 30.0  # after the limit: the supervisor itself must have hung
SUPERVISOR = Path(__file__).resolve().parent / "code_process.py"


@dataclass(frozen=True)
class Outcome:
    """status: "ok" (it ran to its end), "time", "output", "processes" (some were left running), "crash" (it ended early
    or was killed) or "lost" (the sandbox failed: no fault of the program). `passed` of `total` tests held.
    """

    status: str
    passed: int = 0
    total: int = 0
    reason: str = ""


def run_program(source: str, tests: list[str] = (), setup: str = "", cases: list[dict] = ()) -> Outcome:
    """`tests`: pieces of Python run one after the other behind `setup` and the program, in one process;
    `cases`: the program runs once for each {"input", "output"} and must print the output. One of the two.
    """
    assert bool(tests) != bool(cases), "give tests or cases"
    job = {"source": source, "tests": list(tests), "setup": setup, "cases": list(cases)}
    folder = tempfile.mkdtemp(prefix="grpo-ma-code-")
    try:
        return Outcome(**_supervised(job | {"cpu": CPU_SECONDS, "wall": WALL_SECONDS}, Path(folder) / "work"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def isolation() -> dict:
    """{"namespaces": bool, "files": bool}: whether this kernel isolates network and processes, and guards files."""
    with tempfile.TemporaryDirectory(prefix="grpo-ma-code-") as folder:
        return _supervised({"probe": True}, Path(folder) / "work")


def _supervised(job: dict, work: Path) -> dict:
    """The supervisor's answer; the whole group is killed when it gives none."""
    work.mkdir()
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(work), "TMPDIR": str(work)}
    supervisor = subprocess.Popen(
        [sys.executable, "-I", "-B", str(SUPERVISOR)],
        cwd=work,
        env=environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        text, _ = supervisor.communicate(json.dumps(job).encode(), timeout=job.get("wall", 0) + GUARD_SECONDS)
        return json.loads(text)
    except subprocess.TimeoutExpired:
        return {"status": "lost", "reason": "the supervisor did not answer"}
    except ValueError:
        return {"status": "lost", "reason": f"the supervisor ended with status {supervisor.returncode}"}
    finally:
        _kill_group(supervisor.pid)
        supervisor.communicate()


def _kill_group(leader: int) -> None:
    """Kills what is left of a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
