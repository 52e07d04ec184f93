"""Prompts per second of two processes against one, on the demo (CPU, one thread and separate prompts per process).

    python scripts/bench/processes.py [--steps 10] [--rounds 2] [--json processes.json]

Time is measured from the end of the first step to the end of the last, which excludes imports, loading and warm-up.
`ratio` is in wall-clock time and needs two idle cores. `cpu_ratio` estimates the ratio on idle cores: in each step the
CPU seconds of the slower process count, since the other waits for it. A `ratio` far below it means that the cores were
busy with other work.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

from two_processes import start

PROMPTS = 4  # per process and step: 64 rows of 16 leaves


def train_demo(folder: Path, steps: int) -> None:
    """Trains the demo recipe; each process writes its wall clock and CPU clock at the end of every step."""
    import torch
    from transformers import TrainerCallback

    import train

    class Clock(TrainerCallback):
        def __init__(self):
            self.wall, self.cpu = [], []  # at the end of every step

        def on_step_end(self, args, state, control, **kwargs):
            self.wall.append(time.perf_counter())
            self.cpu.append(time.process_time())

    torch.set_num_threads(1)
    flags = ["--output_dir", str(folder / "run"), "--max_steps", str(steps), "--disable_tqdm", "true"]
    flags += ["--logging_steps", "1000", "--sync_prompt_across_ranks", "false", "--ddp_timeout", "300"]
    parser = train.RecipeParser((train.GRPOScriptArguments, train.GRPOConfig, train.GRPOModelConfig))
    arguments = parser.parse(["--config", str(ROOT / "config/recipes/grpo_ma_demo.yaml"), *flags])
    trainer = train.build(*arguments, parser.provenance)
    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    rank = trainer.accelerator.process_index
    (folder / f"{rank}.json").write_text(json.dumps({"wall": clock.wall, "cpu": clock.cpu}))
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


def measure(processes: int, steps: int) -> dict[str, float]:
    """Prompts per second of wall clock, and per CPU second of the slower process in each step."""
    with tempfile.TemporaryDirectory() as folder:
        start([__file__, "--worker", folder, "--steps", str(steps)], processes, timeout=1200)
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(processes)]
    prompts = PROMPTS * processes * (steps - 1)
    seconds = {
        kind: sum(max(step) for step in zip(*(differences(one[kind]) for one in found), strict=True))
        for kind in ("wall", "cpu")
    }
    metrics = {kind: prompts / value for kind, value in seconds.items()}
    print(f"{processes} process(es): {metrics['wall']:.3f} prompts/s, {metrics['cpu']:.3f} by CPU time", flush=True)
    return metrics


def differences(times: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="optimiser steps per run; the first is not timed")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each, alternating; medians are reported")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return train_demo(args.worker, args.steps)
    runs = {processes: [] for processes in (1, 2)}
    for _ in range(args.rounds):
        for processes, found in runs.items():
            found.append(measure(processes, args.steps))
    median = {n: {k: statistics.median(one[k] for one in found) for k in found[0]} for n, found in runs.items()}
    metrics = {
        "prompts_per_second_1": median[1]["wall"],
        "prompts_per_second_2": median[2]["wall"],
        "ratio": median[2]["wall"] / median[1]["wall"],
        "cpu_ratio": median[2]["cpu"] / median[1]["cpu"],
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }
    for name, value in metrics.items():
        print(f"{name:24} {value:.3f}")
    if args.json:
        args.json.write_text(json.dumps(metrics, indent=2) + "\n")


if __name__ == "__main__":
    main()
