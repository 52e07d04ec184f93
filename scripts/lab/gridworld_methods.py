"""Chains, GiGPO and Tree-GRPO on the gridworld, each until it has sampled the same number of tokens.

    python scripts/demo/learn_to_walk.py --out runs/gridworld/model          # the policy that all runs start from
    python scripts/lab/gridworld_methods.py --output_dir runs/gridworld_methods

A run trains that model with the settings of config/recipes/gigpo_gridworld.yaml and tree_grpo_gridworld.yaml, changed
by --set, and stops after the step in which it exceeds --tokens sampled tokens (without observations; shared tokens
count once). Then the test boards, which no training uses, are walked once greedily and --samples times at temperature
1. One core, one process. A run writes METHOD-seedN.json and is not repeated if the file exists, so other settings need
another folder. Prints means over seeds with 95% t intervals, and those of the differences to the chains of the same
seed.
"""

import argparse
import functools
import json
import math
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
from scipy.special import stdtrit
from seed_runs import NOT_TRAINING, TokenBudget, make_runs
from transformers import set_seed

from config.grpo_config import GRPOConfig
from config.methods import SETTINGS
from dataset.dataset_grpo import build_dataset
from model.loading import load_policy
from scripts.data.make_gridworld import boards, write_records
from scripts.demo.learn_to_walk import BOARDS, TEST_SEED
from task.rewards.router import task_rewards
from task.task_loader import load_tasks
from trainer.evaluation.item_metrics import samples_of
from trainer.evaluation.predict import predict
from trainer.grpo_ma_trainer import GRPOMATrainer
from trainer.policies.agent.build import policies_of_evaluation

PROMPTS = 4  # boards per step
TRAIN_SEED, TRAIN_BOARDS, TEST_BOARDS = 1, 1024, 256
METHODS = {
    "untrained": None,
    "chains": ("tree_grpo", {"tree_num": 8, "expand_num": 0, "advantage": "inter"}),
    "gigpo": ("gigpo", {}),
    "trees": ("tree_grpo", {}),
    "trees_inter": ("tree_grpo", {"advantage": "inter"}),
}
METRICS = ("success", "fell_share", "moves", "turns")
COLUMNS = (*METRICS, *(f"greedy_{name}" for name in METRICS), "steps", "train_tokens", "seconds")


def settings_for(name: str, changes: dict) -> dict:
    """GRPOConfig's arguments: the recipe's, then the method's, then `changes`; PROMPTS boards per step."""
    method, own = METHODS[name] or METHODS["chains"]
    recipe = yaml.safe_load((ROOT / "config" / "recipes" / f"{method}_gridworld.yaml").read_text())
    kept = {key: value for key, value in recipe.items() if key not in (*NOT_TRAINING, "freeze_vision")}
    settings = kept | own | changes | {"use_cpu": True, "disable_tqdm": True}
    derived = {"branches_per_node": 1} | settings
    leaves = SETTINGS[method].size(argparse.Namespace(**derived)).derived.get("num_generations")
    leaves = leaves[0] if leaves else settings["num_generations"]
    return settings | {"per_device_train_batch_size": PROMPTS * leaves}


def made_boards(folder: Path, part: str, count: int, seed: int, tasks: dict):
    """The dataset of `count` boards of a part."""
    write_records(folder / part, boards(count, seed=seed, part=part, **BOARDS), f"lake-{part}")
    return build_dataset([str(folder / part / "gridworld.yaml")], tasks)


def run(name: str, seed: int, budget: int, folder: Path, model: Path, samples: int, changes: dict) -> dict:
    """One run and its evaluation."""
    torch.set_num_threads(1)
    set_seed(seed)
    tasks = load_tasks()
    module, policy, processor = load_policy(str(model), dtype="float32")
    module.freeze(policy, freeze_vision=True)
    output = tempfile.mkdtemp(prefix=f"train_{name}_{seed}_", dir=folder)
    settings = settings_for(name, changes) | {"output_dir": output, "max_steps": 100_000}
    tokens = TokenBudget(budget, PROMPTS)
    trainer = GRPOMATrainer(
        policy,
        task_rewards(tasks),
        GRPOConfig(seed=seed, data_seed=seed, **settings),
        made_boards(folder, "train", TRAIN_BOARDS, TRAIN_SEED, tasks),
        processing_class=processor,
        module=module,
        tasks=tasks,
        callbacks=[tokens],
    )
    begun = time.process_time()
    if METHODS[name]:
        trainer.train()
    seconds = time.process_time() - begun
    logs = [entry for entry in trainer.state.log_history if "rewards/accuracy_reward/mean" in entry]
    metrics = {"steps": trainer.state.global_step, "train_tokens": tokens.tokens, "seconds": round(seconds)}
    metrics["rewards"] = [round(entry["rewards/accuracy_reward/mean"], 4) for entry in logs]
    test = made_boards(folder, "test", TEST_BOARDS, TEST_SEED, tasks)
    for prefix, temperature in (("", 1.0), ("greedy_", 0.0)):
        found = evaluate(trainer, test, temperature, seed, samples)
        metrics |= {prefix + metric: found.get(metric, math.nan) for metric in METRICS}
    return metrics


def evaluate(trainer, rows, temperature: float, seed: int, samples: int) -> dict:
    """The task's metrics on the test boards, one chain per sample."""
    args, tasks = trainer.args, trainer.tasks
    length, tokenizer = args.max_completion_length, trainer.module.tokenizer
    policy_of = policies_of_evaluation(args, {}, tasks, tokenizer, trainer.module, length=length)
    with trainer._generating(temperature=temperature) as engine:
        settings = {"max_new_tokens": length, "batch_size": 128, "policy_of": policy_of}
        settings |= {"seed": seed, "num_samples": samples} if temperature else {}
        found = predict(engine, trainer.module, rows, tasks, **settings)
    return tasks["gridworld"].compute_metrics([sample for item in found for sample in samples_of(item)])


def t_interval(values: list[float]) -> tuple[float, float]:
    """(mean, half the width of its 95% t interval; NaN for a single value)."""
    n, mean = len(values), sum(values) / len(values)
    if n < 2:
        return mean, math.nan
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n)


def table(folder: Path) -> dict:
    """{method: {column: [mean, half width, seeds]}}, and under "METHOD - chains" those of the paired differences."""
    runs = {name: {int(path.stem.rpartition("seed")[2]): json.loads(path.read_text())
                   for path in sorted(folder.glob(f"{name}-seed*.json"))} for name in METHODS}  # fmt: skip
    found = {}
    for name, own in runs.items():
        if own:
            found[name] = {c: [*t_interval([one[c] for one in own.values()]), len(own)] for c in COLUMNS}
        both = sorted(own.keys() & runs["chains"].keys())
        if both and name not in ("chains", "untrained"):
            differences = {c: [own[seed][c] - runs["chains"][seed][c] for seed in both] for c in COLUMNS}
            found[f"{name} - chains"] = {c: [*t_interval(v), len(v)] for c, v in differences.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--model_name_or_path", type=Path, default=ROOT / "runs" / "gridworld" / "model")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS)[:4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--tokens", type=int, default=60_000, help="sampled tokens per run")
    parser.add_argument("--samples", type=int, default=4, help="walks per test board at temperature 1")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings that replace the recipe's")
    args = parser.parse_args()
    changes = {name: yaml.safe_load(value) for name, _, value in (one.partition("=") for one in args.set)}
    given = {"model": args.model_name_or_path, "samples": args.samples, "changes": changes}
    make_runs(
        args.output_dir, args.methods, args.seeds, args.tokens,
        functools.partial(run, budget=args.tokens, folder=args.output_dir, **given),
    )  # fmt: skip
    found = table(args.output_dir)
    print(f"{'':16}" + "".join(f"{name:>20}" for name in found))
    for column in COLUMNS:
        cells = [f"{columns[column][0]:12.4g} ± {columns[column][1]:<5.2g}" for columns in found.values()]
        print(f"{column:16}" + "".join(cells))
    (args.output_dir / "gridworld_methods.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
