"""The cost of agent trees: tokens and tool calls relative to chains, by hops, and time with slow tools.

    python scripts/lab/agents.py --prompts 200 --json agents.json

Budget: (M, N, L) trees of the search demo's questions at temperature 1, against plain chains of the same questions. The
cost of a tree is its sampled tokens (shared ones counted once) divided by the mean tokens of a chain with as many hops,
and likewise for turns that call the tool. The paper's estimate, M * (1 + L * N / 2) chains, counts a branch as half a
chain. It is more: every chain gets the same number of branches, so a step of a short chain is chosen more often than
one of a long chain, while the continuation sampled after it has the usual length.
Latency: the same rollouts with a tool that takes --latency seconds, with concurrent against sequential calls.
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import locate, use_checkout

ROOT = use_checkout()

import torch

from config.methods.tree_grpo import TreeGRPOFields
from dataset.dataset_grpo import build_dataset, read_row
from model.loading import load_policy
from task.search_qa import SearchEnvironment
from task.task_loader import load_tasks
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.policies.agent.build import agent_policy
from trainer.policies.agent.observation import TurnOutcome
from trainer.policies.agent.step import TreeShape

CHAINS = 4  # per prompt, to measure the cost of a chain


class Bench:
    """The demo's model and questions; `grow` returns the trees of a shape."""

    def __init__(self, args):
        self.args, self.tasks = args, load_tasks()
        self.module, self.model, self.tokenizer = load_policy(locate(args.model_name_or_path), None, dtype="float32")
        self.model.eval()
        rows = build_dataset([locate(args.dataset)], self.tasks)
        self.records = [read_row(row) for row in rows.select(range(min(args.prompts, len(rows))))]
        self.prompts = [self.module.encode(record["messages"]) for record in self.records]
        self.settings = {"retriever": str(ROOT / args.retriever), "top_k": 3}

    def grow(self, shape: TreeShape, max_calls: int = 16, count: int | None = None):
        """(trees, the engine's counts, seconds)."""
        limits = TreeGRPOFields(max_turns=4, max_turn_length=64, max_observation_length=128)
        records, prompts = self.records[:count], self.prompts[:count]
        policy = agent_policy(
            limits, records, self.tasks, self.tokenizer, self.module, self.settings, shape=shape, length=512
        )
        eos, forbidden = self.module.eos_token_ids(self.tokenizer), self.module.forbidden_token_ids(self.tokenizer)
        engine = TransformersEngine(
            self.model, self.module, self.tokenizer, Sampling(1.0), eos, forbidden, max_prompts=50, max_calls=max_calls
        )
        torch.manual_seed(self.args.seed)
        started = time.monotonic()
        trees = engine.grow(prompts, policy, [record["id"] for record in records])
        return trees, engine.stats, time.monotonic() - started


def cost(tree) -> tuple[int, int, int]:
    """(sampled tokens, turns that call a tool, calls made) of one tree."""
    seen = [node.extra for node in tree.nodes if isinstance(node.extra, TurnOutcome)]
    tokens = sum(len(node.token_ids) for node in tree.nodes if node.sampled)
    return tokens, sum(one.calls + one.reused for one in seen), sum(one.calls for one in seen)


def budget(bench: Bench, shape: TreeShape) -> dict:
    chains, _, _ = bench.grow(TreeShape(CHAINS))
    trees, counts, _ = bench.grow(shape)
    hops = [record["extra"].get("hops", 0) for record in bench.records]
    chain_cost, tree_cost = defaultdict(list), defaultdict(list)
    for own, chain, tree in zip(hops, chains, trees, strict=True):
        assert len(tree.leaves()) == shape.leaves
        keys = [own, "2 and more"] if own >= 2 else [own]
        for key in keys:
            chain_cost[key].append([x / CHAINS for x in cost(chain)])
            tree_cost[key].append(cost(tree))
    table = {}
    for key in sorted(tree_cost, key=str):
        chain, tree = (list(map(fmean, zip(*costs[key], strict=True))) for costs in (chain_cost, tree_cost))
        table[str(key)] = {
            "prompts": len(tree_cost[key]),
            "chain_tokens": chain[0],
            "chain_calls": chain[1],
            "tree_tokens_in_chains": tree[0] / chain[0],
            "tree_calls_in_chains": tree[1] / chain[1] if chain[1] else float("nan"),
            "tree_calls_made_in_chains": tree[2] / chain[2] if chain[2] else float("nan"),
        }
    return {"leaves": shape.leaves, "recomputed_tokens": counts["recomputed_tokens"], "hops": table}


def latency(bench: Bench, shape: TreeShape) -> dict:
    """Seconds of the same rollouts with concurrent and with sequential calls."""
    search = SearchEnvironment.search

    def slow(self, query: str) -> str:
        time.sleep(bench.args.latency)
        return search(self, query)

    SearchEnvironment.search = slow
    try:
        together, counts, fast = bench.grow(shape, count=bench.args.slow_prompts)
        apart, _, after = bench.grow(shape, max_calls=1, count=bench.args.slow_prompts)
    finally:
        SearchEnvironment.search = search
    tokens = [[[node.token_ids for node in tree.nodes] for tree in trees] for trees in (together, apart)]
    assert tokens[0] == tokens[1], "both ways sample the same trees"
    made = sum(cost(tree)[2] for tree in together)
    return {
        "calls": counts["calls"],
        "calls_made": made,
        "side_by_side_s": fast,
        "one_after_another_s": after,
        "speedup": after / fast,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", default="scripts/demo/tiny_text_model")
    parser.add_argument("--dataset", default="metadata/demo/search_test.yaml")
    parser.add_argument("--retriever", default="metadata/demo/search/corpus.jsonl")
    parser.add_argument("--prompts", type=int, default=200, help="questions for the budget (%(default)s)")
    parser.add_argument("--slow_prompts", type=int, default=16, help="questions for the latency (%(default)s)")
    parser.add_argument("--latency", type=float, default=0.5, help="seconds per call (%(default)s)")
    parser.add_argument("--shape", type=int, nargs=3, default=(2, 2, 1), metavar=("M", "N", "L"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the metrics to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(args)
    shape = TreeShape(*args.shape)
    metrics = {"shape": list(args.shape), "budget": budget(bench, shape), "latency": latency(bench, shape)}
    _show(metrics)
    if args.json:
        args.json.write_text(json.dumps(metrics, indent=2) + "\n")


def _show(metrics: dict) -> None:
    found = metrics["budget"]
    print(f"{metrics['shape']}: {found['leaves']} leaves, {found['recomputed_tokens']} tokens computed twice")
    for hops, row in found["hops"].items():
        print(f"  hops {hops}: " + ", ".join(f"{name} {value:.3g}" for name, value in row.items()))
    print(", ".join(f"{name} {value:.4g}" for name, value in metrics["latency"].items()))


if __name__ == "__main__":
    main()
