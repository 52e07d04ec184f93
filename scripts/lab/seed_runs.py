"""Runs of several methods and seeds, one file each, only of complete runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from transformers import TrainerCallback

NOT_TRAINING = ("dataset_name", "model_name_or_path", "output_dir", "use_peft")  # keys of a recipe


class TokenBudget(TrainerCallback):
    """Stops training after the step in which `budget` sampled tokens are exceeded; needs logging_steps 1."""

    def __init__(self, budget: int, prompts: int):
        self.budget, self.prompts, self.tokens = budget, prompts, 0.0

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.tokens += (logs or {}).get("tokens/generated", 0.0) * self.prompts
        control.should_training_stop |= self.tokens >= self.budget
        return control


def make_runs(
    folder: Path, methods: Iterable[str], seeds: Iterable[int], tokens: int, run: Callable[[str, int], dict]
) -> None:
    """Writes the result of `run(method, seed)` to METHOD-seedN.json, unless the file exists.

    SIGTERM ends training gracefully: a run with fewer than `tokens` is not written, and the script exits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for name in methods:
            file = folder / f"{name}-seed{seed}.json"
            if file.exists():
                continue
            result = run(name, seed)
            if result["steps"] and result["train_tokens"] < tokens:
                sys.exit(f"{file.name} not written: stopped after {result['train_tokens']} of {tokens} tokens")
            file.write_text(json.dumps(result) + "\n")
            print(f"{file}: {file.read_text()}", flush=True)
