"""Savings by forks on the demo scenes: tokens sampled for the leaves of a prompt against as many separate chains.

    python scripts/lab/forks.py --json forks.json          # tree_adv's default setting, and its fork_rule baselines
    python scripts/lab/forks.py --min_gap 24 --num_generations 32

The shipped tiny model, temperature 1, one core. Each rule grows two generations: the first with the initial threshold
of ln 2 nats, the second, which is printed, with the threshold measured on the first. `generated` is relative to chains
that were actually sampled, `saved` to the leaves of the trees themselves.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import torch

from config.grpo_config import GRPOConfig
from config.methods.tree_adv import TreeAdvFields
from dataset.dataset_grpo import build_dataset
from model.loading import load_policy
from task.task_loader import load_tasks
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.methods import METHODS, Batch
from trainer.policies.chain import ChainPolicy
from trainer.policies.entropy.rules import RULES
from trainer.prompts import PromptEncoder

METRICS = ("fork/saved", "fork/count", "fork/filled", "fork/depth", "fork/entropy", "fork/distinct", "fork/threshold")


class Bench:
    """An engine on the tiny model and the first scenes of the demo."""

    def __init__(self, prompts: int, seed: int):
        torch.set_num_threads(1)
        self.seed = seed
        self.module, model, processor = load_policy(str(ROOT / "scripts/demo/tiny_model"), dtype="float32")
        self.module.processor = processor
        rows = build_dataset([str(ROOT / "metadata/demo/trajectory_train.yaml")], load_tasks())
        encoder = PromptEncoder(self.module, 4096, "error", "error", None, 160)
        self.prompts = [encoder.encode(rows[i]) for i in range(prompts)]
        self.tokenizer = processor.tokenizer
        ends, forbidden = self.module.eos_token_ids(processor), self.module.forbidden_token_ids(processor)
        self.engine = TransformersEngine(model.eval(), self.module, self.tokenizer, Sampling(), ends, forbidden)

    def grow(self, policy):
        torch.manual_seed(self.seed)
        return self.engine.grow(self.prompts, policy, [str(i) for i in range(len(self.prompts))])

    def forks(self, args, chains: int) -> dict:
        """Metrics of the second generation, with the threshold measured on the first."""
        memory = {}
        for _ in range(2):
            policy = METHODS["tree_adv"].policy(
                Batch(args, tokenizer=self.tokenizer, module=self.module, memory=memory)
            )
            sums = policy.metrics(self.grow(policy))
            metrics = {name: total / count if count else float("nan") for name, (total, count) in sums.items()}
            policy.remember(metrics)
        stats = self.engine.stats
        return {"generated": stats["generated_tokens"] / chains, "recomputed": stats["recomputed_tokens"]} | {
            name.removeprefix("fork/"): metrics[name] for name in METRICS
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the metrics to this file")
    shape = {"num_generations": 16} | {
        name: TreeAdvFields.__dataclass_fields__[name].default for name in ("num_trees", "branch_factor", "min_gap")
    }
    for name, default in shape.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    bench = Bench(given.prompts, given.seed)
    plain = {"output_dir": "runs/forks", "method": "tree_adv", "max_completion_length": 160, "use_cpu": True}
    plain |= {name: getattr(given, name) for name in shape}
    bench.grow(ChainPolicy(given.num_generations, 160))
    chains = bench.engine.stats["generated_tokens"]
    print(f"{given.prompts} prompts, {shape | plain}\n{given.num_generations} chains per prompt: {chains} tokens")
    found = {}
    for rule in RULES:
        args = GRPOConfig(report_to="none", fork_rule=rule, **plain)
        found[rule] = bench.forks(args, chains)
    print(f"{'':24}" + "".join(f"{name:>12}" for name in next(iter(found.values()))))
    for name, metrics in found.items():
        print(f"{name:24}" + "".join(f"{value:12.4g}" for value in metrics.values()))
    if given.json:
        given.json.write_text(json.dumps({"chains": chains} | found, indent=2) + "\n")


if __name__ == "__main__":
    main()
