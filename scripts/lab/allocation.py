"""Two changes to GRPO-MA, judged by the error of the policy gradient at equal leaves: adaptive M and shrinkage.

    python scripts/lab/allocation.py --json allocation.json   # half a minute of one core

Adaptive M: half of the answers are spread evenly; the others go, one after the other, to the thought whose value is
least certain, the one with the largest estimated standard error sqrt(q (1 - q) / m), q = (right + 1) / (m + 2). `all`
takes the mean of all answers of a thought, which is biased because the second half depends on the first; `fresh` takes
the mean of the second half only, at least one answer per thought, and is unbiased. Printed with the largest bias of a
thought's value, in standard deviations of the reward.

Shrinkage: the advantages of a prompt's thoughts are multiplied by the estimated share of the variance of their values
that is not noise of the answers (`variance/rho` of the log). It can only matter where prompts differ in it, so there
are also tasks in which the thoughts of every second prompt hardly differ. `batch` is `scale_rewards batch`: no division
per prompt.

Rewards are 0 or 1. Each row is the mean over tasks, with its standard error, of error / error of the plain estimate.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

from trainer.budget.simulation import Thoughts, estimate_error, standardised

POSSIBLE, PROMPTS = 100, 16


def beta_prompts(centre: float, shares: list[float], rng) -> list[Thoughts]:
    """Prompts whose thoughts have Beta distributed success rates of variance share * centre * (1 - centre)."""
    made = []
    for share in shares:
        concentration = 1 / share - 1
        means = rng.beta(centre * concentration, (1 - centre) * concentration, POSSIBLE)
        made.append(Thoughts(np.full(POSSIBLE, 1 / POSSIBLE), means, None))
    return made


def adaptive(means: np.ndarray, answers: int, rng, fresh: bool) -> np.ndarray:
    """(D, K) values of thoughts with success rates `means`, from K * answers 0/1 answers of which half are adaptive."""
    draws, thoughts = means.shape
    first = answers // 2
    right, total = rng.binomial(first, means).astype(float), np.full(means.shape, float(first))
    new_right, new_total = np.zeros_like(right), np.zeros_like(total)
    if fresh:  # each thought needs an answer that its allocation did not depend on
        new_right, new_total = rng.binomial(1, means).astype(float), np.ones_like(total)
    rows = np.arange(draws)
    for _ in range(thoughts * (answers - first) - (thoughts if fresh else 0)):
        seen = total if fresh else total + new_total
        share = ((right if fresh else right + new_right) + 1) / (seen + 2)
        chosen = (share * (1 - share) / (seen + (new_total if fresh else 0))).argmax(axis=1)
        new_right[rows, chosen] += rng.random(draws) < means[rows, chosen]
        new_total[rows, chosen] += 1
    return new_right / new_total if fresh else (right + new_right) / (total + new_total)


def shrunk(rewards: np.ndarray) -> np.ndarray:
    """(D, K) standardised values of (D, K, M) rewards times the reliability that `thought_answer` would estimate."""
    values, noise = rewards.mean(2), rewards.var(2, ddof=1).mean(1) / rewards.shape[2]
    between = np.maximum(values.var(1, ddof=1) - noise, 0)
    rho = np.divide(between, between + noise, out=np.zeros_like(between), where=between + noise > 0)
    return standardised(values) * rho[:, None]


def errors(prompts: list[Thoughts], thoughts: int, answers: int, draws: int, seed: int) -> dict[str, float]:
    """Error of each rule over that of the plain one, at K = `thoughts` and K * M leaves."""

    def sampled(prompt, drawn, rng):
        return rng.random((*drawn.shape, answers)) < prompt.means[drawn][..., None]

    def batch(prompt, drawn, rng):
        values = sampled(prompt, drawn, rng).mean(2)
        return values - values.mean(1, keepdims=True)

    rules = {
        "plain": lambda prompt, drawn, rng: standardised(sampled(prompt, drawn, rng).mean(2)),
        "adaptive, all": lambda prompt, drawn, rng: standardised(adaptive(prompt.means[drawn], answers, rng, False)),
        "adaptive, fresh": lambda prompt, drawn, rng: standardised(adaptive(prompt.means[drawn], answers, rng, True)),
        "shrinkage": lambda prompt, drawn, rng: shrunk(sampled(prompt, drawn, rng).astype(float)),
        "batch": batch,
    }
    found = {name: estimate_error(prompts, rule, thoughts, draws, seed)[0] for name, rule in rules.items()}
    return {name: value / found["plain"] for name, value in found.items()}


def largest_bias(thoughts: int, answers: int, draws: int, seed: int) -> dict[str, float]:
    """Largest |mean value - success rate| over thoughts of rates 0.1 to 0.9, in standard deviations of the reward."""
    rng = np.random.default_rng(seed)
    means = np.linspace(0.1, 0.9, thoughts)
    spread = np.sqrt(means.mean() * (1 - means.mean()))
    drawn = np.broadcast_to(means, (draws, thoughts))
    found = {}
    for name, fresh in (("adaptive, all", False), ("adaptive, fresh", True)):
        bias = adaptive(drawn, answers, rng, fresh).mean(0) - means
        found[name] = float(np.abs(bias).max() / spread)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--draws", type=int, default=2_000, help="per prompt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rng, found = np.random.default_rng(args.seed), {}
    for kind in ("equal prompts", "half without differences"):
        for thoughts, answers in ((4, 4), (4, 8), (8, 4)):
            rows = []
            for task in range(args.tasks):
                share = np.exp(rng.uniform(np.log(0.05), np.log(0.5)))
                shares = [share if kind == "equal prompts" or i % 2 else 0.002 for i in range(PROMPTS)]
                prompts = beta_prompts(rng.uniform(0.2, 0.8), shares, rng)
                rows.append(errors(prompts, thoughts, answers, args.draws, task))
            means = {
                name: (fmean(r[name] for r in rows), stdev(r[name] for r in rows) / len(rows) ** 0.5)
                for name in rows[0]
            }
            found[f"{kind}, {thoughts} x {answers}"] = means
            cells = (f"{name} {mean:.3f} +- {error:.3f}" for name, (mean, error) in means.items() if name != "plain")
            print(f"{kind}, {thoughts} x {answers}: " + "  ".join(cells), flush=True)
    found["bias"] = {f"{k} x {m}": largest_bias(k, m, 100_000, args.seed) for k, m in ((4, 4), (4, 8), (8, 4))}
    print("largest bias of a value, in standard deviations of the reward:", found["bias"])
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
