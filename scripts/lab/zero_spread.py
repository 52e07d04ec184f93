"""Prompts without signal at equal sampled tokens: keep, redraw and grow on the same rollouts of one frozen policy.

    python scripts/demo/make_uneven.py --out runs/uneven
    python scripts/lab/zero_spread.py --data runs/uneven/train.yaml --output_dir runs/zero_spread

The shipped tiny model grows 4 thoughts with 4 answers for each prompt; rewards are 0 or 1 for the path (the format has
weight 0). From these same rollouts redraw replaces prompts and grow samples further answers, each from its own random
numbers. Printed: the share of prompts with signal, sampled tokens per prompt (discarded rollouts and further answers
included), prompts with signal per 1,000 sampled tokens, and paired bootstrap intervals of 95% over prompts. Every
generation is a file in --output_dir, which is not made again; the results are in results.json.
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
os.environ["GRPO_MA_TASKS"] = str(ROOT / "scripts" / "lab" / "tasks")

import numpy as np
import torch

from dataset.dataset_grpo import build_dataset
from model.loading import load_policy
from task.rewards.router import task_rewards
from task.task_loader import load_tasks
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.logs.progress import RolloutBar
from trainer.policies.thought_answer import ThoughtAnswerPolicy
from trainer.prompts import PromptEncoder
from trainer.rollout import Rollout
from trainer.zero_spread.draws import substitutes
from trainer.zero_spread.groups import Groups
from trainer.zero_spread.grow import Draw, grown
from trainer.zero_spread.redraw import redrawn, sampled_tokens
from trainer.zero_spread.slots import Sampler, Scores, Slot

MODES = ("keep", "redraw", "grow")
THINK, ANSWERS, LENGTH = 4, 4, 80


class OneProcess:
    """The collectives of a run of one process."""

    rank, count = 0, 1

    def objects(self, items: list) -> list:
        return items

    def gather(self, numbers) -> np.ndarray:
        return np.asarray(numbers, dtype=int)


class Study:
    """The policy, the data and the rewards.

    Args:
        data: a manifest.
        budget, rounds: of grow and redraw, as `grow_budget` and `max_redraws`.
    """

    def __init__(self, data: str, budget: float, rounds: int, seed: int):
        torch.set_num_threads(1)
        self.budget, self.rounds, self.seed = budget, rounds, seed
        tasks = load_tasks()
        self.rows = build_dataset([data], tasks)
        self.module, model, processor = load_policy(str(ROOT / "scripts/demo/tiny_model"), dtype="float32")
        self.module.processor = processor
        self.ends = self.module.eos_token_ids(processor)
        forbidden = self.module.forbidden_token_ids(processor)
        self.engine = TransformersEngine(
            model.eval(), self.module, processor.tokenizer, Sampling(), self.ends, forbidden
        )
        self.encoder = PromptEncoder(self.module, 4096, "error", "error", None, 2 * LENGTH)
        self.rewards = task_rewards(tasks)

    def score(self, rows: list[dict], rollout: Rollout) -> Scores:
        columns = rollout.as_trl()
        texts = self.module.completion_texts(columns["completion_ids"], self.ends) if rows else []
        given = {name: columns[name] for name in ("image_sizes", "processed_sizes", "failed")}
        records = [row["record"] for row in rows]
        values = [reward(completions=texts, record=records, **given) for reward in self.rewards]
        return Scores(torch.tensor(values, dtype=torch.float32).T.reshape(len(rows), len(values)))

    def generation(self, number: int, prompts: list[int]) -> dict[str, np.ndarray]:
        """`outcome` of each mode, from the same first rollouts. Trees are shared, so tokens are counted in between."""
        policy = ThoughtAnswerPolicy(THINK, ANSWERS, LENGTH, LENGTH, "</think>", extends=True)
        bar = RolloutBar(shown=False)
        sampler = Counting(self.engine, self.encoder, policy, bar, self.ends[0], self.score)
        groups = Groups(OneProcess(), len(prompts), False, [0.0, 1.0], [True, True])
        torch.manual_seed(self.seed + 1000 * number)
        slots = sampler.score(sampler.grow([self.rows[i] for i in prompts]))
        tokens = np.array([sampled_tokens(slot) for slot in slots])
        found = {"keep": outcome(groups, slots, tokens)}
        budget = int(self.budget * len(prompts) * policy.leaves)
        longer, _, _ = grown(slots, sampler, groups, budget, Draw(self.seed, number))
        found["grow"] = outcome(groups, longer, np.array([sampled_tokens(slot) for slot in longer]))
        others = substitutes(len(self.rows), prompts, self.seed, number, self.rounds, len(prompts))
        sampler.grown.clear()
        replaced = redrawn(slots, sampler, groups, others, self.rows)
        for places, fresh in zip(replaced.drawn, sampler.grown, strict=True):
            np.add.at(tokens, list(places), [sampled_tokens(slot) for slot in fresh])
        found["redraw"] = outcome(groups, replaced.slots, tokens)
        return found


class Counting(Sampler):
    """A sampler that keeps what it grew, call by call."""

    def __init__(self, *args):
        super().__init__(*args)
        self.grown: list[list[Slot]] = []

    def grow(self, rows: list[dict]) -> list[Slot]:
        self.grown.append(super().grow(rows))
        return self.grown[-1]


def outcome(groups: Groups, slots: list[Slot], tokens: np.ndarray) -> np.ndarray:
    """(prompts, 2) whether each prompt has a signal, and its sampled tokens."""
    flat, _ = groups.flat(slots)
    return np.stack([~np.isin(np.arange(len(slots)), flat), tokens], axis=1).astype(float)


def per_1000(of_prompts: np.ndarray) -> float:
    """Prompts with signal per 1,000 sampled tokens."""
    signal, tokens = of_prompts.sum(axis=0)
    return 1000 * signal / tokens


def bootstrap(found: dict[str, np.ndarray], draws: int, seed: int) -> dict[str, list[float]]:
    """95% intervals of `per_1000` of each mode, and of its ratio to keep's; all modes share the drawn prompts."""
    random, count = np.random.default_rng(seed), len(found["keep"])
    values = {mode: np.empty(draws) for mode in found}
    for draw in range(draws):
        chosen = random.integers(0, count, count)
        for mode, of_prompts in found.items():
            values[mode][draw] = per_1000(of_prompts[chosen])
    pairs = {mode: values[mode] for mode in found}
    pairs |= {f"{mode} / keep": values[mode] / values["keep"] for mode in found if mode != "keep"}
    pairs["grow / redraw"] = values["grow"] / values["redraw"]
    return {name: [float(bound) for bound in np.quantile(value, (0.025, 0.975))] for name, value in pairs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="manifest of scripts/demo/make_uneven.py")
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--batch", type=int, default=20, help="prompts per generation")
    parser.add_argument("--grow_budget", type=float, default=0.1)
    parser.add_argument("--max_redraws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output_dir", type=Path, required=True)
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    study = Study(args.data, args.grow_budget, args.max_redraws, args.seed)
    order = np.random.default_rng(args.seed).permutation(len(study.rows))[: args.prompts].tolist()
    parts = []
    for number, start in enumerate(range(0, args.prompts, args.batch)):
        file = args.output_dir / f"generation-{number}.json"
        if not file.exists():
            outcomes = study.generation(number, order[start : start + args.batch])
            file.write_text(json.dumps({mode: found.tolist() for mode, found in outcomes.items()}), encoding="utf-8")
        parts.append({mode: np.array(found) for mode, found in json.loads(file.read_text()).items()})
        print(f"{start + len(parts[-1]['keep'])} of {args.prompts} prompts", file=sys.stderr, flush=True)
    found = {mode: np.concatenate([part[mode] for part in parts]) for mode in MODES}
    intervals = bootstrap(found, 2000, args.seed)
    print(f"{'':8}{'signal':>10}{'tokens':>10}{'per 1000 tokens':>18}{'95% interval':>20}")
    for mode, of_prompts in found.items():
        signal, tokens = of_prompts.mean(axis=0)
        low, high = intervals[mode]
        print(f"{mode:8}{signal:10.1%}{tokens:10.1f}{per_1000(of_prompts):18.4f}{low:12.4f} to {high:.4f}")
    for name in ("redraw / keep", "grow / keep", "grow / redraw"):
        first, other = name.split(" / ")
        ratio = per_1000(found[first]) / per_1000(found[other])
        print(f"{name}: {ratio:.3f} ({intervals[name][0]:.3f} to {intervals[name][1]:.3f})")
    means = {mode: [*found[mode].mean(axis=0).tolist(), per_1000(found[mode])] for mode in MODES}
    results = {"means": means, "intervals": intervals}
    (args.output_dir / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
