"""Both engines on one frozen checkpoint: rewards of sampled trees, greedy completions, and steps of chains that fork.

    .venv-vllm/bin/python scripts/bench/engine_agreement.py --adapter_path runs/demo --json agreement.json

On each engine, each of --prompts prompts gets a tree of --think_num thoughts with --answer_num answers each, sampled at
temperature 1 with a seed per engine, and one greedy completion. The standard error of the difference of mean rewards is
clustered by prompt: it is that of the mean of one difference per prompt. Each of the first --forking prompts also gets
the trees of tree_adv, whose chains fork while they grow, one prompt at a time, with tree_adv's initial threshold.

Exit status 1 if mean rewards differ by more than two standard errors, less than 99% of the greedy completions agree, or
the steps of tree_adv differ by more than 5%.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import numpy as np
import torch

from config.grpo_config import GRPOConfig
from dataset.dataset_grpo import build_dataset, load_media, read_row
from model.loading import load_policy
from task.rewards.router import task_rewards
from task.task_loader import load_tasks
from trainer.engines.merged_lora import merged_lora
from trainer.engines.prepacked import prepacked
from trainer.engines.request_engine import RequestEngine
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.engines.vllm.size import Size
from trainer.engines.vllm.start import colocated
from trainer.methods import METHODS, Batch
from trainer.policies.chain import ChainPolicy
from trainer.policies.thought_answer import ThoughtAnswerPolicy
from trainer.rollout import Rollout

REWARDS = ("format", "accuracy")
BATCH = 8  # prompts that grow together
LEAST_EQUAL = 0.99  # share of greedy completions
MOST_STEPS = 0.05  # relative difference of the steps of tree_adv


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", help="without an adapter; default: the shipped tiny model")
    parser.add_argument("--adapter_path", help="a checkpoint")
    parser.add_argument("--dataset", default=str(ROOT / "metadata/demo/trajectory_train.yaml"))
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--forking", type=int, default=64, help="prompts for the trees of tree_adv")
    parser.add_argument("--think_num", type=int, default=4)
    parser.add_argument("--answer_num", type=int, default=4)
    parser.add_argument("--max_length", type=int, default=80, help="tokens of a thought, and of an answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    if args.model_name_or_path is None and args.adapter_path is None:
        args.model_name_or_path = str(ROOT / "scripts/demo/tiny_model")
    torch.set_num_threads(1)
    metrics = compare(args)
    for name, value in metrics.items():
        print(f"{name:26} {value:.6g}")
    if args.json:
        args.json.write_text(json.dumps(metrics, indent=2) + "\n")
    agree = all(abs(metrics[f"{name}_gap"]) <= 2 * metrics[f"{name}_standard_error"] for name in REWARDS)
    steps = metrics["tree_adv_steps_vllm"] / metrics["tree_adv_steps_own"] - 1
    return int(not agree or metrics["equal_greedy"] < LEAST_EQUAL or abs(steps) > MOST_STEPS)


@torch.no_grad()
def compare(args) -> dict:
    module, model, processor = load_policy(args.model_name_or_path, args.adapter_path, dtype="float32")
    module.processor, model = processor, model.eval()
    tasks = load_tasks()
    rows = build_dataset([args.dataset], tasks)
    records = [read_row(rows[i]) for i in range(args.prompts)]
    prompts = [module.encode(record["messages"], *load_media(record)) for record in records]
    ends, forbidden = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
    longest = max(len(prompt.ids) for prompt in prompts) + 2 * args.max_length
    size = Size(longest, rows=BATCH * args.think_num * args.answer_num)
    serving = colocated(model, processor, torch.float32, size, ends, forbidden, processes=1, shown=False)
    serving.sync(model)

    def engine(name: str, temperature: float):
        sampling = Sampling(temperature)
        if name == "vllm":
            return RequestEngine(serving.requests, module.tokenizer, sampling, ends, max_prompts=BATCH)
        return TransformersEngine(model, module, module.tokenizer, sampling, ends, forbidden, max_prompts=BATCH)

    tree = ThoughtAnswerPolicy(args.think_num, args.answer_num, args.max_length, args.max_length, "</think>")
    chain, names = ChainPolicy(1, 2 * args.max_length), [record["id"] for record in records]
    settings = {"max_completion_length": 2 * args.max_length, "num_generations": tree.leaves, "report_to": "none"}
    config = GRPOConfig("runs/engine_agreement", method="tree_adv", use_cpu=True, **settings)
    forks = METHODS["tree_adv"].policy(Batch(config, tokenizer=module.tokenizer, module=module))
    decode = lambda ids: module.completion_texts(ids, ends)  # noqa: E731
    means, greedy, metrics = {}, {}, {"prompts": len(prompts), "leaves": tree.leaves}
    with merged_lora(model), prepacked(model):
        for number, name in enumerate(("own", "vllm")):
            torch.manual_seed(2 * args.seed + number)
            begin = time.process_time()
            trees = engine(name, 1.0).grow(prompts, tree, names)
            metrics[f"{name}_cpu_s"] = time.process_time() - begin
            means[name] = mean_rewards(Rollout.from_trees(prompts, trees, tree.leaves, ends[0]), records, tasks, decode)
            chains = engine(name, 0.0).grow(prompts, chain, names)
            greedy[name] = [one.tokens(one.leaves()[0]) for one in chains]
            metrics |= forking(engine(name, 1.0), name, prompts[: args.forking], forks)
    for column, reward in enumerate(REWARDS):
        own, vllm = (means[name][:, column] for name in ("own", "vllm"))
        gaps = vllm - own
        metrics |= {f"{reward}_own": own.mean(), f"{reward}_vllm": vllm.mean(), f"{reward}_gap": gaps.mean()}
        metrics[f"{reward}_standard_error"] = gaps.std(ddof=1) / len(gaps) ** 0.5
    equal = [a == b for a, b in zip(greedy["own"], greedy["vllm"], strict=True)]
    return {name: float(value) for name, value in metrics.items()} | {"equal_greedy": float(np.mean(equal))}


def forking(engine, name: str, prompts: list, policy) -> dict:
    """Steps, forks and tokens per prompt of trees that fork while they grow, and the standard error of the steps."""
    counts = []
    for number, prompt in enumerate(prompts):
        engine.grow([prompt], policy, [str(number)])
        counts.append([engine.stats[key] for key in ("steps", "forks", "generated_tokens")])
    steps, forks, tokens = np.array(counts, dtype=np.float64).T
    return {
        f"tree_adv_steps_{name}": steps.mean(),
        f"tree_adv_steps_{name}_standard_error": steps.std(ddof=1) / len(steps) ** 0.5,
        f"tree_adv_forks_{name}": forks.mean(),
        f"tree_adv_tokens_{name}": tokens.mean(),
    }


def mean_rewards(rollout: Rollout, records: list[dict], tasks: dict, decode) -> np.ndarray:
    """(prompts, rewards) means over the leaves of each prompt; an abstention is left out."""
    trees = rollout.row_tree
    columns = {
        "completions": decode([rollout.completion(row) for row in range(len(trees))]),
        "record": [json.dumps(records[tree]) for tree in trees],
        "image_sizes": [rollout.prompts[tree].image_sizes for tree in trees],
        "processed_sizes": [rollout.prompts[tree].processed_sizes for tree in trees],
    }
    table = np.array([function(**columns) for function in task_rewards(tasks)], dtype=np.float64)
    return np.nanmean(table.reshape(len(table), len(records), -1), axis=2).T


if __name__ == "__main__":
    sys.exit(main())
