"""Bias of `on_zero_spread grow` by simulation: drawing n rows against training all n + E, and stopping at a success.

    python scripts/lab/growth_bias.py --json growth_bias.json   # a few CPU seconds

A prompt has 4 thoughts with 4 answers each, whose rewards are 0 or 1 with the prompt's success rate, drawn from
Beta(0.3, 0.3). The update of a row is its answer advantage times the gradient of the log-probability of its outcome
in the logit of the success rate, the outcome minus the rate. If all 16 rewards are equal, one further answer comes
below each thought; prompts count whose rewards then differ.

1. The update of n rows drawn by `trained_rows`, weighted by (n + E) / n, minus that of all n + E rows: 0 in
   expectation for each prompt, so the mean over prompts must lie within its standard errors of 0.
2. Without weights the update is n / (n + E) of it.
3. The mean reward of the further answers, over the success rate: growth by a fixed count gives 1; growth that stops
   at the first success counts that success too often.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

use_checkout()

from trainer.advantages.thought_answer import thought_answer
from trainer.zero_spread.draws import trained_rows

THOUGHTS, ANSWERS, FURTHER = 4, 4, 4


def grown_prompt(rng, rate: float) -> tuple[np.ndarray, np.ndarray] | None:
    """(rewards, success rate of each row) of a prompt that is rescued: equal rewards first, then one that differs."""
    rates = np.full(THOUGHTS * ANSWERS + FURTHER, rate)
    rewards = (rng.random(len(rates)) < rates).astype(float)
    first = rewards[: THOUGHTS * ANSWERS]
    rescued = first.min() == first.max() and rewards.min() != rewards.max()
    return (rewards, rates) if rescued else None


def drawn_against_all(draws: int, seed: int) -> dict[str, list[float]]:
    """Mean and standard error of the drawn rows' update minus that of all rows, over the mean size of the latter."""
    rng, gaps, sizes, unweighted = np.random.default_rng(seed), [], [], []
    n = THOUGHTS * ANSWERS
    thoughts = np.concatenate([np.repeat(np.arange(THOUGHTS), ANSWERS), np.arange(FURTHER) % THOUGHTS])
    for number in range(draws):
        found = grown_prompt(rng, rng.beta(0.3, 0.3))
        if found is None:
            continue
        rewards, rates = found
        each = thought_answer(rewards, np.zeros(len(rewards)), thoughts).answer * (rewards - rates)
        rows = trained_rows(len(each), n, seed, number, 0)
        gaps.append(each[rows].sum() * len(each) / n - each.sum())
        unweighted.append(each[rows].sum() - each.sum())
        sizes.append(abs(each.sum()))
    scale = np.mean(sizes)
    error = np.std(gaps) / np.sqrt(len(gaps)) / scale
    return {
        "prompts": len(gaps),
        "weighted": [np.mean(gaps) / scale, error],
        "unweighted": [np.mean(unweighted) / scale, np.std(unweighted) / np.sqrt(len(gaps)) / scale],
    }


def stopping(rate: float, draws: int, seed: int) -> dict[str, list[float]]:
    """Per rule, mean and standard error of the further answers' mean reward, over the success rate."""
    success = np.random.default_rng(seed).random((draws, FURTHER)) < rate
    until = np.where(success.any(axis=1), success.argmax(axis=1) + 1, FURTHER)
    means = {"count": success.mean(axis=1), "first success": success.any(axis=1) / until}
    return {name: [found.mean() / rate, found.std() / np.sqrt(draws) / rate] for name, found in means.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200_000, help="prompts that are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    found = {"drawn": drawn_against_all(args.draws, args.seed)}
    found |= {f"rate {rate}": stopping(rate, args.draws, args.seed) for rate in (0.02, 0.05, 0.1)}
    for name, of_part in found.items():
        print(name)
        for part, value in of_part.items():
            shown = f"{value[0]:+.4f} +- {value[1]:.4f}" if isinstance(value, list) else value
            print(f"  {part}: {shown}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
