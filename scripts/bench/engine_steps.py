"""CPU seconds per optimiser step of the demo recipe, with each engine alternately in one process.

    .venv-vllm/bin/python scripts/bench/engine_steps.py --steps 4 --rounds 3 --json engine_steps.json

One process with one thread; a step has 4 prompts of 16 leaves. In each round each engine's trainer takes --steps steps,
on from where its last round ended. A step's seconds are those from its begin to its end, rollouts included; start-up
and a first round are not timed. Both trainers start from the same weights, and sample different rollouts, so the
sampled tokens and the longest completion per step, which is its number of decoding steps, are printed too.
"""

import argparse
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

import torch
from transformers import TrainerCallback

import train

FLAGS = {"own": [], "vllm": ["--use_vllm", "true", "--vllm_gpu_memory_utilization", "0.05"]}


class StepTimes(TrainerCallback):
    """(CPU seconds, sampled tokens, tokens of the longest completion) of each step."""

    def __init__(self, trainer):
        self.trainer, self.found, self.begin = trainer, [], 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self.begin = time.process_time()

    def on_step_end(self, args, state, control, **kwargs):
        seconds, trees = time.process_time() - self.begin, self.trainer.generation.rollout.trees
        longest = max(len(tree.tokens(leaf)) for tree in trees for leaf in tree.leaves())
        self.found.append((seconds, sum(tree.unique_tokens() for tree in trees), longest))


def trainer_of(engine: str, steps: int, folder: str):
    """The trainer of the demo recipe on an engine, and its times."""
    flags = ["--output_dir", f"{folder}/{engine}", "--max_steps", str(steps), "--disable_tqdm", "true"]
    flags += ["--logging_steps", "1000", "--warmup_steps", "0", "--lr_scheduler_type", "constant", *FLAGS[engine]]
    parser = train.RecipeParser((train.GRPOScriptArguments, train.GRPOConfig, train.GRPOModelConfig))
    arguments = parser.parse(["--config", str(ROOT / "config/recipes/grpo_ma_demo.yaml"), *flags])
    trainer = train.build(*arguments, parser.provenance)
    times = StepTimes(trainer)
    trainer.add_callback(times)
    return trainer, times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="optimiser steps per engine and round")
    parser.add_argument("--rounds", type=int, default=3, help="medians over them are reported")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rounds = {engine: [] for engine in FLAGS}
    with tempfile.TemporaryDirectory() as folder:
        sides = {engine: trainer_of(engine, args.steps, folder) for engine in FLAGS}
        for round_ in range(args.rounds + 1):
            for engine, (trainer, times) in sides.items():
                times.found.clear()
                trainer.train()
                means = [statistics.fmean(column) for column in zip(*times.found, strict=True)]
                print("{}: {:.3f} CPU seconds, {:.0f} tokens, longest {:.0f}".format(engine, *means), flush=True)
                if round_:
                    rounds[engine].append(means)
    metrics = {}
    for engine, found in rounds.items():
        names = (f"{engine}_s", f"{engine}_tokens", f"{engine}_longest")
        metrics |= zip(names, map(statistics.median, zip(*found, strict=True)), strict=True)
    metrics["vllm_of_own"] = metrics["vllm_s"] / metrics["own_s"]
    for name, value in metrics.items():
        print(f"{name:12} {value:.4g}")
    if args.json:
        args.json.write_text(json.dumps(metrics, indent=2) + "\n")


if __name__ == "__main__":
    main()
