"""Runs an untrusted program against its tests, in processes that end with it.

The program runs under code_process.py in its own session, with an empty environment, a new folder (in a new parent)
that is removed afterwards, and limits on CPU time, wall-clock time, memory, file size and output. If the kernel allows
it (Linux with user namespaces and Landlock, no privileges needed), it also has no network, cannot see other processes,
cannot write outside its folder, and can read only its folder, Python, its libraries and the system's; all its processes
end with the sandbox. `isolation()` reports what holds on this machine. Without namespaces, sockets are blocked in
Python only, and left-over processes are searched for and killed; without Landlock, files can be read and written.

It guards against what a policy in training writes, not against an attacker. Objects whose operators contradict
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

CPU_SECONDS = 3  # per process
WALL_SECONDS = 6.0  # per program, with all its tests
GUARD_SECONDS = 30.0  # beyond the limit, after which the supervisor itself must have hung
SUPERVISOR = Path(__file__).resolve().parent / "code_process.py"


@dataclass(frozen=True)
class Outcome:
    """status: "ok" (it ran to its end), "time", "output", "processes" (some were left running), "crash" (it ended early
    or was killed) or "lost" (the sandbox itself failed). `passed` of `total` tests passed.
    """

    status: str
    passed: int = 0
    total: int = 0
    reason: str = ""


def run_program(source: str, tests: list[str] = (), setup: str = "", cases: list[dict] = ()) -> Outcome:
    """The outcome of a program; give either `tests` or `cases`.

    `tests`: Python statements, run one after the other after `setup` and the program, in one process.
    `cases`: the program runs once for each {"input", "output"} and must print the output.
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
    """{"namespaces": bool, "files": bool}: whether this kernel isolates network and processes, and protects files."""
    with tempfile.TemporaryDirectory(prefix="grpo-ma-code-") as folder:
        return _supervised({"probe": True}, Path(folder) / "work")


def _supervised(job: dict, work: Path) -> dict:
    """The supervisor's answer, or "lost" without one; its process group is killed in any case."""
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
    """Kills the remaining processes of a group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
