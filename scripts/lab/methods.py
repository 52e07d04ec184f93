"""GRPO, GSPO, TreeAdv-GRPO and TreeAdv-GSPO on the demo scenes, each until it has sampled the same number of tokens.

    python scripts/lab/methods.py --output_dir runs/methods                                 # all twelve runs
    python scripts/lab/methods.py --output_dir runs/methods --methods tree_adv_grpo --seeds 1   # one, then the table

A run trains LoRA on the tiny model with the settings of the demo recipes, two updates per generation and a constant
learning rate, and stops after the step in which it exceeds --tokens sampled tokens; then the held-out scenes are
answered twice each at temperature 1. One core, one process. A run writes METHOD-seedN.json and is not repeated if the
file exists. Prints the mean and standard deviation over seeds, and writes them to methods.json.
"""

import argparse
import functools
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
from peft import LoraConfig
from seed_runs import make_runs, table
from transformers import TrainerCallback, set_seed

from config.grpo_config import GRPOConfig
from dataset.dataset_grpo import build_dataset
from model.loading import load_policy
from task.rewards.router import task_rewards
from task.task_loader import load_tasks
from trainer.evaluation.predict import predict
from trainer.grpo_ma_trainer import GRPOMATrainer

METHODS = {
    "grpo": {"method": "grpo", "importance_sampling_level": "token"},
    "gspo": {"method": "grpo", "importance_sampling_level": "sequence"},
    "tree_adv_grpo": {"method": "tree_adv", "importance_sampling_level": "token"},
    "tree_adv_gspo": {"method": "tree_adv", "importance_sampling_level": "sequence"},
}
# Two updates per generation, so that ratios differ from 1, and token and sequence level from each other.
SETTINGS = {
    "num_generations": 16, "max_completion_length": 160, "learning_rate": 4e-4, "warmup_steps": 5,
    "lr_scheduler_type": "constant_with_warmup", "per_device_train_batch_size": 64, "num_iterations": 2,
    "reward_weights": [0.2, 1.0], "gradient_checkpointing": False, "save_strategy": "no", "report_to": "none",
    "logging_steps": 1, "use_cpu": True, "disable_tqdm": True, "max_steps": 100_000,
}  # fmt: skip
COLUMNS = ("accuracy", "format", "output_tokens", "steps", "fork_saved", "seconds")


class TokenBudget(TrainerCallback):
    """Stops training after the step in which `budget` sampled tokens are exceeded; shared tokens count once."""

    def __init__(self, budget: int):
        self.budget, self.trainer, self.seen, self.tokens, self.generations = budget, None, None, 0, 0

    def on_step_end(self, args, state, control, **kwargs):
        rollout = self.trainer.generation.rollout
        if rollout is not self.seen:
            self.seen, self.generations = rollout, self.generations + 1
            self.tokens += sum(tree.unique_tokens() for tree in rollout.trees)
        last = state.global_step % args.num_iterations == 0
        control.should_training_stop = last and self.tokens >= self.budget
        return control


def train(name: str, seed: int, budget: int, folder: Path) -> dict:
    """One run and its evaluation."""
    torch.set_num_threads(1)
    set_seed(seed)
    tasks = load_tasks()
    module, model, processor = load_policy(str(ROOT / "scripts" / "demo" / "tiny_model"), dtype="float32")
    output = tempfile.mkdtemp(prefix=f"train_{name}_{seed}_", dir=folder)
    args = GRPOConfig(output_dir=output, seed=seed, data_seed=seed, **SETTINGS, **METHODS[name])
    tokens = TokenBudget(budget)
    trainer = GRPOMATrainer(
        model,
        task_rewards(tasks),
        args,
        build_dataset([str(ROOT / "metadata" / "demo" / "trajectory_train.yaml")], tasks),
        processing_class=processor,
        module=module,
        tasks=tasks,
        peft_config=LoraConfig(r=64, lora_alpha=128, target_modules=module.lora_target_modules(model)),
        callbacks=[tokens],
    )
    tokens.trainer = trainer
    begun = time.process_time()
    trainer.train()
    seconds = time.process_time() - begun
    logs = [entry for entry in trainer.state.log_history if "rewards/accuracy_reward/mean" in entry]
    saved = [entry["fork/saved"] for entry in logs if "fork/saved" in entry]
    return {
        "steps": trainer.state.global_step,
        "train_tokens": tokens.tokens,
        "seconds": round(seconds),
        "fork_saved": statistics.fmean(saved) if saved else 0.0,
        "rewards": [round(entry["rewards/accuracy_reward/mean"], 4) for entry in logs],
        "lengths": [round(entry["completions/mean_length"], 2) for entry in logs],
    } | evaluate(trainer, tasks, seed)


def evaluate(trainer, tasks, seed: int, samples: int = 2) -> dict:
    rows = build_dataset([str(ROOT / "metadata" / "demo" / "trajectory_test.yaml")], tasks)
    with trainer._generating(temperature=1.0) as engine:
        settings = {"max_new_tokens": 160, "batch_size": 64, "num_samples": samples, "seed": seed}
        predictions = predict(engine, trainer.module, rows, tasks, **settings)
    flat = [sample for item in predictions for sample in item["samples"]]
    means = {name: statistics.fmean(float(item[name] or 0) for item in flat) for name in ("accuracy", "format")}
    return means | {"output_tokens": statistics.fmean(item["tokens"] for item in flat)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--tokens", type=int, default=150_000, help="sampled tokens per run")
    args = parser.parse_args()
    run_one = functools.partial(train, budget=args.tokens, folder=args.output_dir)
    make_runs(args.output_dir, args.methods, args.seeds, args.tokens, run_one)
    found = table(args.output_dir, METHODS, COLUMNS)
    print(f"{'':16}" + "".join(f"{column:>20}" for column in COLUMNS))
    for name, columns in found.items():
        print(f"{name:16}" + "".join(f"{mean:11.4g} ± {spread:<6.2g}" for mean, spread, _ in columns.values()))
    (args.output_dir / "methods.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
