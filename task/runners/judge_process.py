"""The worker of judge.py: `judge_process.py VERIFIER.py CPU_SECONDS WALL_SECONDS`; communicates in JSON lines.

Each question is answered by a forked child with its own limits, so that a verifier cannot hang or exhaust the worker.
"""

import importlib.util
import json
import logging
import os
import resource
import select
import signal
import sys
import time
import warnings

MEMORY_BYTES = 4 << 30  # address space of one question
LARGEST_VERDICT = 65_536  # bytes


def main() -> None:
    path, cpu_seconds, wall_seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    # What a verifier prints must not end up among the verdicts.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        judge = load(path)
    except Exception as error:
        say(out, status="lost", reason=f"{type(error).__name__}: {error}")
        return
    say(out, status="ok")
    for line in sys.stdin:
        say(out, **answer(judge, json.loads(line), cpu_seconds, wall_seconds))


def load(path: str):
    """The verifier's `judge`, warmed up, so that no question pays for lazy initialisation."""
    spec = importlib.util.spec_from_file_location("verifier", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for arguments in module.WARM_UP:
        module.judge(*arguments)
    return module.judge


def answer(judge, arguments: list, cpu_seconds: int, wall_seconds: float) -> dict:
    """The verdict of a forked child, or "limit" if it had to be killed or died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.write(writing, json.dumps(judged(judge, arguments, cpu_seconds)).encode()[:LARGEST_VERDICT])
        os._exit(0)
    os.close(writing)
    text, deadline = b"", time.monotonic() + wall_seconds
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reading, LARGEST_VERDICT)
        text += part
        if not part:
            break
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        return json.loads(text)
    except ValueError:
        return {"status": "limit"}


def judged(judge, arguments: list, cpu_seconds: int) -> dict:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        return {"status": "ok", "value": judge(*arguments)}
    except (MemoryError, RecursionError):
        return {"status": "limit"}
    except Exception as error:
        return {"status": "lost", "reason": f"{type(error).__name__}: {error}"}


def say(out, **verdict) -> None:
    out.write(json.dumps(verdict) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
