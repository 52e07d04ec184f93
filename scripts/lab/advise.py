"""How many thoughts K and answers M for a budget per prompt: from a run's log, from a probe, or a check of the advice.

    python scripts/lab/advise.py --run runs/mine                                # a run of grpo_ma with M above 1
    python scripts/lab/advise.py --recipe config/recipes/grpo_ma_demo.yaml --unit seconds --budget 0.5
    python scripts/lab/advise.py --check --json advise.json                     # on 20 simulated tasks, minutes

The advice is the pair with the smallest expected squared error of the policy gradient within the budget, by simulation
(`trainer/budget/simulation.py`). --budget is per prompt, in tokens or in seconds of sampling; by default it is what 4
thoughts with 4 answers cost.

--check: a task is a softmax over some hundred thoughts per prompt, whose right answers have different probabilities
(Bernoulli rewards). The advice sees a probe of 16 prompts x 8 thoughts x 8 answers only. Its choice is compared with
the best of all pairs within the budget. Their errors are simulated on the task itself; the best four and the advised
pair are simulated again, with new draws and a standard error of about 1% or less.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import locate, use_checkout

ROOT = use_checkout()

from task.errors import UserError
from trainer.budget.advice import advise, in_words, sizes_within
from trainer.budget.choice import usual_budget
from trainer.budget.probe import Probe, variances
from trainer.budget.recheck import NAMES
from trainer.budget.simulation import Thoughts, gradient_error

LAST = 20  # log lines of a run that count
FINALISTS, PRECISE = 4, 0.01  # pairs of the grid that are simulated again, to a relative standard error


def probe_of_log(run: Path) -> Probe:
    """The probe that the last lines of a run's log.jsonl give."""
    file = run / "log.jsonl"
    if not file.exists():
        raise UserError(f"{file} does not exist: name the output_dir of a training run")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    kept = [line for line in lines if all(line.get(name) is not None for name in NAMES)][-LAST:]
    if not kept:
        raise UserError(f"{file} has no variance/between: the run must be one of grpo_ma with answer_num above 1")
    return Probe(*(fmean(line[name] for line in kept) for name in NAMES))


def probe_of_recipe(recipe: str, unit: str, flags: list[str]) -> Probe:
    from config.grpo_config import GRPOConfig
    from config.model_config import GRPOModelConfig
    from config.parser import RecipeParser
    from config.script_arguments import GRPOScriptArguments
    from trainer.budget.sampled_probe import probe_policy

    parser = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig))
    return probe_policy(*parser.parse(["--config", locate(recipe), *flags]), locate, unit)


def bernoulli(probabilities: np.ndarray, means: np.ndarray) -> Thoughts:
    return Thoughts(probabilities, means, lambda drawn, m, rng: rng.binomial(m, means[drawn]) / m)


def simulated_task(rng) -> tuple[list[Thoughts], float, float, float]:
    """(prompts, cost of a thought, cost of an answer, budget) of a random task."""
    possible, spread = int(rng.integers(40, 400)), rng.uniform(0.2, 1.0)
    centre, share = rng.uniform(0.2, 0.8), np.exp(rng.uniform(np.log(0.02), np.log(0.5)))
    concentration = 1 / share - 1  # the variance of a Beta distribution is then this share of centre * (1 - centre)
    prompts = []
    for _ in range(16):
        weights = np.exp(spread * rng.standard_normal(possible))
        means = rng.beta(centre * concentration, (1 - centre) * concentration, possible)
        prompts.append(bernoulli(weights / weights.sum(), means))
    thought, answer = float(np.exp(rng.uniform(np.log(0.5), np.log(10)))), 1.0
    k, m = rng.integers(3, 9), rng.integers(2, 9)
    return prompts, thought, answer, float(k * (thought + m * answer))


def probed(prompts: list[Thoughts], rng) -> tuple[float, float]:
    """(between, within) from 8 thoughts with 8 answers each to every prompt."""
    rewards = []
    for prompt in prompts:
        drawn = rng.choice(len(prompt.means), size=8, p=prompt.probabilities)
        rewards.append(rng.binomial(1, prompt.means[drawn], size=(8, 8)).T.astype(float))
    return variances(rewards)


def check(tasks: int, draws: int, seed: int) -> list[dict]:
    """Per simulated task, the advised pair, the best pair of the grid, and the ratio of their errors."""
    rng, rows = np.random.default_rng(seed), []
    for number in range(tasks):
        prompts, thought, answer, budget = simulated_task(rng)
        probe = Probe(*probed(prompts, rng), thought, answer)
        best = advise(probe, sizes_within(probe, budget), "group").best
        advised = (best.think_num, best.answer_num)
        most = int(budget / (thought + answer))
        grid = [(k, m) for k in range(2, most + 1) for m in range(1, int((budget / k - thought) / answer + 1e-9) + 1)]
        errors = {pair: gradient_error(prompts, *pair, draws, seed=number) for pair in grid}
        finalists = {advised, *sorted(grid, key=lambda pair: errors[pair][0])[:FINALISTS]}
        errors |= {pair: precise_error(prompts, pair, draws, number, errors[pair][1]) for pair in finalists}
        winner = min(finalists, key=lambda pair: errors[pair][0])
        row = {"advised": advised, "best": winner, "ratio": errors[advised][0] / errors[winner][0], "grid": len(grid)}
        row |= {"standard_error": max(error / value for value, error in (errors[advised], errors[winner]))}
        row |= {"four_by_four": errors[4, 4][0] / errors[winner][0] if (4, 4) in errors else None}
        rows.append(row | {"probe": probe.__dict__, "budget": budget})
        print(
            f"task {number + 1}: advised {advised}, best {winner} of {len(grid)}, ratio {row['ratio']:.3f}", flush=True
        )
    return rows


def precise_error(prompts: list[Thoughts], pair: tuple[int, int], draws: int, number: int, first: float):
    """The error of a pair with new draws, so many that its standard error is below PRECISE of it.

    Args:
        first: the standard error with `draws` draws.
    """
    rough = gradient_error(prompts, *pair, draws, seed=1000 + number)[0]
    needed = (1.3 * first / (PRECISE * rough)) ** 2
    return gradient_error(prompts, *pair, int(draws * max(1.0, needed)), seed=2000 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, help="output_dir of a training run")
    source.add_argument(
        "--recipe", help="a recipe of train.py, whose policy is probed; further flags of train.py follow"
    )
    source.add_argument("--check", action="store_true", help="compare the advice with a grid on simulated tasks")
    parser.add_argument("--budget", type=float, help="per prompt")
    parser.add_argument("--unit", choices=("tokens", "seconds"), default="tokens")
    parser.add_argument("--scale_rewards", choices=("group", "batch", "none"), default="group")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--draws", type=int, default=6_000, help="per prompt and pair (--check)")
    parser.add_argument("--seed", type=int, default=1, help="of --check")
    parser.add_argument("--json", type=Path)
    args, flags = parser.parse_known_args()
    try:
        if flags and not args.recipe:
            raise UserError(f"unknown argument {flags[0]}: --help lists all")
        if args.check:
            found: object = check(args.tasks, args.draws, args.seed)
            ratios = [row["ratio"] for row in found]
            errors = max(row["standard_error"] for row in found)
            print(f"{len(ratios)} tasks: largest ratio {max(ratios):.3f}, mean {fmean(ratios):.3f}, error {errors:.4f}")
        else:
            if args.run and args.unit == "seconds":
                raise UserError("--unit seconds needs a probe (--recipe): a log has no seconds of single thoughts")
            probe = probe_of_log(args.run) if args.run else probe_of_recipe(args.recipe, args.unit, flags)
            budget = args.budget or usual_budget(probe)
            pairs = sizes_within(probe, budget)
            if not pairs:
                raise UserError(f"--budget {budget:g} is below the cost of two thoughts with one answer: raise it")
            advice = advise(probe, pairs, args.scale_rewards)
            print(in_words(advice, probe, budget, args.unit))
            found = {"probe": probe.__dict__, "candidates": [one.__dict__ for one in advice.candidates]}
    except UserError as error:
        print(f"advise.py: {error}", file=sys.stderr)
        return 2
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
