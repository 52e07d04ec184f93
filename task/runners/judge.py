"""Calls a verifier that may hang, from any thread: it runs in its own process, with one killable child per question.

The worker (judge_process.py) imports the verifier once and forks for every question. A fork takes milliseconds, so
killing a question does not cost the next one a restart. Uses no signals in this process.
"""

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task.own_tasks import own_folders

CPU_SECONDS = 1  # of one question
WALL_SECONDS = 10.0  # of one question; generous, for busy machines
START_SECONDS = 180.0  # import and warm-up of a verifier
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Verdict:
    """status "ok": `value` is the verifier's result; "limit": over a time or memory limit; "lost": the verifier failed.

    `reason` explains "lost".
    """

    status: str
    value: Any = None
    reason: str = ""


class Judge:
    """One verifier; its worker starts at the first question.

    `name`: of a file with `judge(*arguments)`, in this folder or in that of the user's own tasks (there, `_name`).
    Safe to use from several threads (questions wait for each other) and after a fork (the child starts its own).
    """

    def __init__(self, name: str):
        self.name = name
        self._lock = threading.Lock()
        self._worker: subprocess.Popen | None = None
        self._owner = 0

    def ask(self, *arguments) -> Verdict:
        """The verdict on JSON arguments, within WALL_SECONDS plus a second (the first: START_SECONDS)."""
        with self._lock:
            try:
                if self._worker is None or self._owner != os.getpid() or self._worker.poll() is not None:
                    self._start()
                self._worker.stdin.write(json.dumps(arguments).encode() + b"\n")
                self._worker.stdin.flush()
                return Verdict(**self._read(WALL_SECONDS + 1.0))
            except (OSError, ValueError) as error:
                self._stop()
                return Verdict("lost", reason=f"the worker of {self.name} failed ({type(error).__name__}: {error})")

    def _start(self) -> None:
        if self._owner == os.getpid():
            self._stop()
        files = [folder / f"{self.name}.py" for folder in (FOLDER, *own_folders())]
        verifier = next((file for file in files if file.is_file()), files[0])
        command = [sys.executable, "-P", str(FOLDER / "judge_process.py"), str(verifier)]
        limits = [str(CPU_SECONDS), str(WALL_SECONDS)]
        self._worker = subprocess.Popen(
            command + limits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._owner = os.getpid()
        atexit.register(self._stop)
        verdict = Verdict(**self._read(START_SECONDS))
        if verdict.status != "ok":
            raise OSError(verdict.reason)

    def _read(self, seconds: float) -> dict:
        """One line from the worker. TimeoutError (an OSError) if none arrives."""
        ready, _, _ = select.select([self._worker.stdout], [], [], seconds)
        if not ready:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        line = self._worker.stdout.readline()
        if not line:
            raise OSError(f"it ended with status {self._worker.wait()}")
        return json.loads(line)

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None or self._owner != os.getpid():
            return
        atexit.unregister(self._stop)
        worker.kill()
        worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            with contextlib.suppress(OSError):  # unwritten data has no reader
                pipe.close()
