"""Kills training runs at random moments, resumes them, and compares the final weights with an uninterrupted run's.

    python scripts/bench/kill_resume.py --kills 20 --json kills.json
    python scripts/bench/kill_resume.py --kills 4 --processes 2
    python scripts/bench/kill_resume.py --kills 4 --train "--on_zero_spread redraw --keep_between 0.9 1.2"
    .venv-vllm/bin/python scripts/bench/kill_resume.py --kills 10 --train "--use_vllm true"

Every run is the demo with a few steps and a checkpoint after each, and every start has `--resume auto`. A step is drawn
from those that remain, and kill -9 comes within the duration of a step after the checkpoint before it, so it hits
rollouts, backward passes and saves (before the first of these steps: the start, too). When a run has finished, its
weights are compared and the next one starts, until there were enough kills.

Exit status 1 if a resume fails, a checkpoint is lost, or weights differ (bit for bit on one process; with more, by more
than 1e-6).
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

RECIPE = ROOT / "config/recipes/grpo_ma_demo.yaml"
SMALL = (
    "--per_device_train_batch_size",
    "16",
    "--save_strategy",
    "steps",
    "--save_steps",
    "1",
    "--disable_tqdm",
    "true",
)
TOLERANCE = 1e-6  # for several processes, where the order of gradient sums may differ


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=6, help="optimiser steps per run (default 6)")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--train", type=str.split, default=[], help="further flags of train.py, as one argument")
    parser.add_argument("--seed", type=int, default=0, help="seed for the moments of the kills")
    parser.add_argument("--json", help="write the results to this file")
    args = parser.parse_args()
    if args.kills < 1 or args.steps < 2 or args.processes < 1:
        parser.error("--kills and --processes must be at least 1, --steps at least 2")
    with tempfile.TemporaryDirectory() as folder:
        metrics = campaign(args, Path(folder))
    print(json.dumps(metrics, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    bound = 0 if args.processes == 1 else TOLERANCE
    sys.exit(int(metrics["lost_checkpoints"] > 0 or metrics["max_weight_gap"] > bound))


def campaign(args, folder: Path) -> dict:
    start, moments, gaps = starter(args), random.Random(args.seed), []
    seconds, times = uninterrupted(start, folder)
    kills = resumes = lost = 0
    while kills < args.kills or not gaps:
        run, log = folder / f"run{len(gaps)}", folder / f"run{len(gaps)}.log"
        finished = False
        while not finished:
            there = newest(run)
            process = start(run, log)
            status = wait(process, moment(moments, run, args.steps, *times) if kills < args.kills else never)
            finished = status is not None
            if not finished:
                end(process)
            assert not finished or os.waitstatus_to_exitcode(status) == 0, log.read_text()[-2000:]
            kills += not finished
            lost += newest(run) < there
            resumes += "going on from" in log.read_text()
            print(f"{run.name}: {'through' if finished else 'killed'}, checkpoint {newest(run)}", flush=True)
        gaps.append(weight_gap(folder / "whole", run))
    return {
        "kills": kills,
        "runs": len(gaps),
        "resumes": resumes,
        "lost_checkpoints": lost,
        "max_weight_gap": max(gaps),
        "seconds_of_a_run": round(seconds, 1),
    }


def uninterrupted(start, folder: Path) -> tuple[float, tuple[float, float]]:
    """(its seconds, its `step_times`) of a run into `folder`/whole that is left alone."""
    run, log, began = folder / "whole", folder / "whole.log", time.monotonic()
    status = os.waitstatus_to_exitcode(wait(start(run, log)))
    seconds = time.monotonic() - began
    assert status == 0, log.read_text()[-2000:]
    return seconds, step_times(run, seconds)


def step_times(run: Path, seconds: float) -> tuple[float, float]:
    """(seconds before the first step, seconds per step) of a run that took `seconds`, from its checkpoints' times."""
    saved = sorted(path.stat().st_mtime for path in run.glob("checkpoint-*"))
    step = (saved[-1] - saved[0]) / (len(saved) - 1)
    return max(seconds - step * len(saved), 0.0), step


def moment(moments: random.Random, run: Path, steps: int, start: float, step: float) -> Callable[[], bool]:
    """A function that tells whether a random moment within one of the run's remaining steps has come."""
    there = newest(run)
    before = moments.randrange(there, max(steps, there + 1))  # the checkpoint before that step
    delay = moments.uniform(0, step + (start if before == there else 0))
    reached = []

    def come() -> bool:
        if not reached and newest(run) >= before:
            reached.append(time.monotonic())
        return bool(reached) and time.monotonic() > reached[0] + delay

    return come


def never() -> bool:
    return False


def starter(args):
    """A function that starts training into a folder and returns the process id.

    A single process is forked, which saves the imports, those of vLLM too.
    """
    flags = ["--config", str(RECIPE), "--max_steps", str(args.steps), *SMALL, *args.train, "--resume", "auto"]

    def launched(output: Path, log: Path) -> int:
        command = ["bash", str(ROOT / "scripts/run_grpo_lora.sh"), "--nproc", str(args.processes), *flags]
        environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
        with open(log, "w") as file:
            command += ["--output_dir", str(output)]
            process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, env=environment)
        return process.pid

    if args.processes > 1:
        return launched
    os.environ["OMP_NUM_THREADS"] = "1"
    import train

    if "--use_vllm" in args.train:
        from trainer.engines.vllm.process_state import process_state_kept
        from trainer.engines.vllm.start import ENVIRONMENT, ON_A_CPU

        with process_state_kept(ENVIRONMENT | ON_A_CPU):
            import trainer.engines.vllm.colocated  # noqa: F401

    def trained(output: Path) -> None:
        sys.argv = ["train.py", *flags, "--output_dir", str(output)]
        train.main()

    return lambda output, log: forked(lambda: trained(output), log)


def forked(run: Callable[[], None], log: Path) -> int:
    """The process id of a fork in a session of its own that runs `run` and writes to `log`."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
    try:
        run()
    except SystemExit as refusal:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(int(refusal.code or 0))
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)


def wait(process: int, stop: Callable[[], bool] = never) -> int | None:
    """The process's status; None if `stop` says True before it ends."""
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return status
        if stop():
            return None
        time.sleep(0.01)


def end(process: int) -> None:
    """Kills a process together with its children."""
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)


def newest(run: Path) -> int:
    """Step of the newest checkpoint under its final name."""
    return max((int(path.name.split("-")[1]) for path in run.glob("checkpoint-*")), default=0)


def weight_gap(one: Path, other: Path) -> float:
    from safetensors.torch import load_file

    first, second = (load_file(folder / "adapter_model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    shutil.rmtree(other)
    return max((first[name] - second[name]).abs().max().item() for name in first)


if __name__ == "__main__":
    main()
