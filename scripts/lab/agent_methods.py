"""GRPO on chains against Tree-GRPO on the search demo, each until it has sampled the same number of tokens.

    python scripts/lab/agent_methods.py --output_dir runs/agent_methods   # all runs
    python scripts/lab/agent_methods.py --output_dir runs/agent_methods --methods chain --seeds 1
    python scripts/lab/agent_methods.py --output_dir runs/inter --methods tree --set advantage=inter loss_type=dapo

A run trains the tiny text model with config/recipes/tree_grpo_demo.yaml, changed by --set, and stops after the step in
which it exceeds --tokens sampled tokens (without what tools return; shared tokens count once). Then the 300 held-out
questions are answered once greedily and six times at temperature 1. One core, one process. A run writes
METHOD-seedN.json and is not repeated if the file exists, so other settings need another folder. Prints the mean and
standard deviation over seeds, and writes them to agent_methods.json.
"""

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import torch
import yaml
from seed_runs import make_runs, table
from transformers import TrainerCallback, set_seed

from config.agents import parse_environment_args
from config.grpo_config import GRPOConfig
from config.methods.tree_grpo import leaves_of
from dataset.dataset_grpo import build_dataset, read_row
from model.loading import load_policy
from task.rewards.router import task_rewards
from task.task_loader import load_tasks
from trainer.evaluation.item_metrics import samples_of
from trainer.evaluation.predict import predict
from trainer.grpo_ma_trainer import GRPOMATrainer
from trainer.policies.agent.build import agent_policy
from trainer.policies.agent.step import TreeShape

RECIPE = yaml.safe_load((ROOT / "config" / "recipes" / "tree_grpo_demo.yaml").read_text())
PROMPTS = 16  # per step
SAMPLES = 6  # per held-out question, at temperature 1
METHODS = {
    "untrained": None,
    "chain": {"tree_num": 4, "expand_num": 0, "advantage": "inter"},
    "tree": {"tree_num": 2, "expand_num": 2},
}
NOT_TRAINING = ("dataset_name", "model_name_or_path", "output_dir", "use_peft")  # keys of the recipe
METRICS = ("em", "em_1_hops", "em_2_hops", "em_3_hops", "tool_calls")
COLUMNS = [*METRICS, *(f"greedy_{name}" for name in METRICS), "steps", "train_tokens", "seconds"]


class TokenBudget(TrainerCallback):
    """Stops training after the step in which `budget` sampled tokens are exceeded; needs logging_steps 1."""

    def __init__(self, budget: int, prompts: int = PROMPTS):
        self.budget, self.prompts, self.tokens = budget, prompts, 0.0

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.tokens += (logs or {}).get("tokens/generated", 0.0) * self.prompts
        control.should_training_stop |= self.tokens >= self.budget
        return control


def settings_for(name: str, changes: dict) -> dict:
    """GRPOConfig's arguments: the recipe's, then the method's, then `changes`; PROMPTS prompts per step."""
    settings = {key: value for key, value in RECIPE.items() if key not in NOT_TRAINING}
    settings |= (METHODS[name] or {}) | changes
    settings["environment_args"] = json.dumps(settings["environment_args"])
    rows = PROMPTS * leaves_of(argparse.Namespace(**{"branches_per_node": 1} | settings))
    return settings | {"per_device_train_batch_size": rows, "use_cpu": True, "disable_tqdm": True}


def make_trainer(settings: dict, seed: int, kind=GRPOMATrainer, hops=(1, 2, 3), model=None, **kwargs):
    """A trainer of class `kind` on the demo's questions of these hops, from the shipped or a folder's weights."""
    torch.set_num_threads(1)
    set_seed(seed)
    tasks = load_tasks()
    module, policy, tokenizer = load_policy(str(model or ROOT / RECIPE["model_name_or_path"]), dtype="float32")
    rows = build_dataset([str(ROOT / RECIPE["dataset_name"])], tasks)
    return kind(
        policy,
        task_rewards(tasks),
        GRPOConfig(seed=seed, data_seed=seed, **settings),
        rows.filter(lambda row: read_row(row)["extra"]["hops"] in hops),
        processing_class=tokenizer,
        module=module,
        tasks=tasks,
        **kwargs,
    )


def run(name: str, seed: int, budget: int, hops: list[int], folder: Path, changes: dict) -> dict:
    """One run and its evaluation."""
    output = tempfile.mkdtemp(prefix=f"train_{name}_{seed}_", dir=folder)
    settings = settings_for(name, changes) | {"output_dir": output, "max_steps": 100_000}
    tokens = TokenBudget(budget)
    trainer = make_trainer(settings, seed, hops=hops, callbacks=[tokens])
    begun = time.process_time()
    if METHODS[name]:
        trainer.train()
    seconds = time.process_time() - begun
    logs = [entry for entry in trainer.state.log_history if "rewards/accuracy_reward/mean" in entry]
    metrics = {"steps": trainer.state.global_step, "train_tokens": tokens.tokens, "seconds": round(seconds)}
    metrics["rewards"] = [round(entry["rewards/accuracy_reward/mean"], 4) for entry in logs]
    for prefix, temperature in (("", 1.0), ("greedy_", 0.0)):
        found = evaluate(trainer, temperature, seed)
        metrics |= {prefix + metric: found[metric] for metric in METRICS}
    return metrics


def evaluate(trainer, temperature: float, seed: int) -> dict:
    """The task's metrics on the held-out questions, one chain each."""
    tasks, args = trainer.tasks, trainer.args
    rows = build_dataset([str(ROOT / "metadata" / "demo" / "search_test.yaml")], tasks)

    def policy_of(task, records):
        settings = parse_environment_args(args.environment_args)
        made_with = (args, records, tasks, trainer.processing_class, trainer.module, settings)
        return agent_policy(*made_with, shape=TreeShape(1), length=args.max_completion_length)

    with trainer._generating(temperature=temperature) as engine:
        settings = {"max_new_tokens": args.max_completion_length, "batch_size": 100, "policy_of": policy_of}
        settings |= {"seed": seed, "num_samples": SAMPLES} if temperature else {}
        found = predict(engine, trainer.module, rows, tasks, **settings)
    return tasks["search_qa"].compute_metrics([sample for item in found for sample in samples_of(item)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--tokens", type=int, default=100_000, help="sampled tokens per run")
    parser.add_argument("--hops", nargs="+", type=int, default=[1, 2, 3], help="hops of the training questions")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings that replace the recipe's")
    args = parser.parse_args()
    changes = {name: yaml.safe_load(value) for name, _, value in (one.partition("=") for one in args.set)}
    run_one = functools.partial(run, budget=args.tokens, hops=args.hops, folder=args.output_dir, changes=changes)
    make_runs(args.output_dir, args.methods, args.seeds, args.tokens, run_one)
    found = table(args.output_dir, METHODS, COLUMNS)
    print(f"{'':18}" + "".join(f"{name:>20}" for name in found))
    for column in COLUMNS:
        cells = [f"{columns[column][0]:12.4g} ± {columns[column][1]:<5.2g}" for columns in found.values()]
        print(f"{column:18}" + "".join(cells))
    (args.output_dir / "agent_methods.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
