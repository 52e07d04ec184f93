"""The variance law of GRPO-MA: how the variance of a thought's advantage falls with K thoughts and M answers.

    python scripts/lab/variance.py --quick --json variance.json                 # simulation only, under a minute
    python scripts/lab/variance.py --output_dir runs/variance --json variance.json   # and the shipped tiny model

Hold the K thoughts of a prompt fixed; then only their answers are random. With mu_j and sigma_j^2 the mean and variance
of the reward after thought j, S the standard deviation of the mu_j with K - d in the denominator, and
A_i = (mu_i - mean mu) / S, the multivariate delta method gives for the estimated advantage of thought i

    Var(A_i) ~ 1 / (M S^2) * sum over j of sigma_j^2 (delta_ij - 1/K - A_i A_j / (K - d))^2

which falls as 1/M, and for K to infinity stays at sigma_i^2 / (M S^2): more thoughts do not remove it.

Simulation: Bernoulli and Gaussian answers, mu spread evenly over 0.2 to 0.8, sigma^2 = mu (1 - mu), i = 0, d = 0.
Real policy (without --quick): --prompts prompts of the demo, --thoughts thoughts each and --answers answers after each,
sampled from fixed weights. A prompt's thoughts are divided into groups of K, their answers into disjoint groups of M;
each group of answers gives one estimate of the K advantages, and the variance over these estimates is unbiased. It is
averaged over thoughts and prompts; the interval of the slope is a bootstrap over prompts.

Keys of the JSON: slope_in_M (log-log, K = 16, M from 64 to 1024), floor_ratio (variance at K = 256 over K = 64, M = 1),
simulation, and policy.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

from chart import chart

from trainer.budget.simulation import standardised

CHECKED = {4: (16, 64, 256), 16: (128, 512), 64: (128, 512)}  # K -> values of M at which the formula should hold
GRID_K, GRID_M, SLOPE_M = (4, 16, 64, 256), (1, 4, 16, 64), (64, 128, 256, 512, 1024)
POLICY_K, POLICY_M = (2, 4, 8, 16), (1, 2, 4, 8, 16, 32)


def delta_method(mu: np.ndarray, sigma2: np.ndarray, answers: int, thought: int = 0, ddof: int = 0) -> float:
    """The formula above for one thought of a prompt.

    Args:
        mu, sigma2: (K,) mean and variance of the reward after each thought.
        answers: M.
        thought: i.

    >>> round(delta_method(np.linspace(0.2, 0.8, 4), np.full(4, 0.2), 16), 3)
    0.078
    """
    count, spread = len(mu), mu.std(ddof=ddof)
    standardised = (mu - mu.mean()) / spread
    terms = (np.arange(count) == thought) - 1 / count - standardised[thought] * standardised / (count - ddof)
    return float((sigma2 * terms**2).sum() / (answers * spread**2))


def simulated(kind: str, thoughts: int, answers: int, trials: int, rng) -> tuple[float, float]:
    """(variance of the advantage of thought 0, the formula's) with K thoughts and M answers."""
    mu = np.linspace(0.2, 0.8, thoughts)
    sigma2 = mu * (1 - mu)
    found = []
    for start in range(0, trials, 10_000):
        size = (min(10_000, trials - start), thoughts)
        if kind == "bernoulli":
            values = rng.binomial(answers, mu, size) / answers
        else:
            values = mu + np.sqrt(sigma2 / answers) * rng.standard_normal(size)
        found.append(standardised(values, ddof=0)[:, 0])
    return float(np.concatenate(found).var(ddof=1)), delta_method(mu, sigma2, answers)


def slope(answers, variances) -> float:
    """Least-squares slope of log variance in log M."""
    return float(np.polyfit(np.log(answers), np.log(variances), 1)[0])


def simulate(trials: int, seed: int) -> dict:
    """Per kind of answers: the grid, the ratios to the formula, the slopes in M and the ratio of K = 256 to K = 64."""
    rng, found = np.random.default_rng(seed), {}
    for kind in ("bernoulli", "gaussian"):
        cells = {(k, m): simulated(kind, k, m, trials, rng) for k in GRID_K for m in GRID_M}
        cells |= {(k, m): simulated(kind, k, m, trials, rng) for k in (4, 16, 64) for m in SLOPE_M if m != 64}
        extra = {(k, m) for k, ms in CHECKED.items() for m in ms} - set(cells)
        cells |= {(k, m): simulated(kind, k, m, trials, rng) for k, m in sorted(extra)}
        found[kind] = {
            "variance": {f"K{k} M{m}": {"measured": a, "formula": b} for (k, m), (a, b) in cells.items()},
            "ratio_to_formula": {f"K{k} M{m}": cells[k, m][0] / cells[k, m][1] for k in CHECKED for m in CHECKED[k]},
            "slope_in_M": {f"K{k}": slope(SLOPE_M, [cells[k, m][0] for m in SLOPE_M]) for k in (4, 16, 64)},
            "floor_ratio": cells[256, 1][0] / cells[64, 1][0],
        }
    return found


def group_variances(rewards: np.ndarray, thoughts: int, answers: int) -> float:
    """Mean variance of the estimated advantages of one prompt, over disjoint groups of answers.

    Args:
        rewards: (T, N) rewards of N answers after each of T thoughts.
        thoughts, answers: K and M.
    """
    found = []
    for first in range(0, len(rewards) - thoughts + 1, thoughts):
        chosen = rewards[first : first + thoughts]
        groups = chosen.shape[1] // answers
        values = chosen[:, : groups * answers].reshape(thoughts, groups, answers).mean(2).T
        found.append(standardised(values).var(axis=0, ddof=1).mean())
    return float(np.mean(found)) if found else float("nan")


def policy_table(prompts: list[np.ndarray], resamples: int = 2000, seed: int = 1) -> dict:
    """Variance over (K, M), slopes in M with 95% intervals, and variance at K relative to the largest K.

    Args:
        prompts: per prompt, (T, N) rewards; a prompt whose thoughts all have one reward is left out.
    """
    kept = [rewards for rewards in prompts if len(rewards) >= max(POLICY_K) and rewards.mean(1).std() > 1e-6]
    cells = {(k, m): np.array([group_variances(r, k, m) for r in kept]) for k in POLICY_K for m in POLICY_M}
    rng, found = np.random.default_rng(seed), {}
    for k in POLICY_K:
        drawn = rng.integers(0, len(kept), (resamples, len(kept)))
        by_m = np.stack([cells[k, m] for m in POLICY_M])
        slopes = [slope(POLICY_M, by_m[:, one].mean(1)) for one in drawn]
        low, high = np.quantile(slopes, [0.025, 0.975])
        means = by_m.mean(1)
        found[f"K{k}"] = {
            "variance": dict(zip(map(str, POLICY_M), means.tolist(), strict=True)),
            "monotone": bool((np.diff(means[:5]) < 0).all()),
            "slope": slope(POLICY_M, means),
            "interval": [float(low), float(high)],
        }
    return {"prompts": len(kept)} | found


def draw(found: dict, folder: Path) -> None:
    """Log-log plots of the variance against M: the simulation with its formula, and the policy."""
    cells, lines = found["simulation"]["bernoulli"]["variance"], {}
    for k in (4, 16, 64):
        points = sorted((int(name.split(" M")[1]), cell) for name, cell in cells.items() if name.startswith(f"K{k} "))
        for source in ("measured", "formula"):
            lines[f"K = {k} {source}"] = [(m, cell[source]) for m, cell in points]
    axes = ("M, answers per thought", "variance of a thought's advantage")
    (folder / "simulation.svg").write_text(chart(lines, "Bernoulli answers, simulated", *axes, log=True) + "\n")
    rows = {name: row["variance"] for name, row in found["policy"].items() if name.startswith("K")}
    lines = {f"K = {name[1:]}": [(int(m), v) for m, v in row.items()] for name, row in rows.items()}
    (folder / "policy.svg").write_text(chart(lines, "Tiny model, trajectory demo", *axes, log=True) + "\n")


def print_table(found: dict) -> None:
    for kind, one in found["simulation"].items():
        print(f"{kind}: measured / formula  " + "  ".join(f"{k} {v:.3f}" for k, v in one["ratio_to_formula"].items()))
        print(f"  slope in M, 64 to 1024  {'  '.join(f'{k} {v:.3f}' for k, v in one['slope_in_M'].items())}")
        print(f"  variance at M = 1, K = 256 over K = 64: {one['floor_ratio']:.3f}")
    for name, row in found.get("policy", {}).items():
        if name.startswith("K"):
            low, high = row["interval"]
            print(f"policy {name}: " + "  ".join(f"M{m} {v:.3f}" for m, v in row["variance"].items()), end="  ")
            print(f"slope {row['slope']:.2f} ({low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the simulation only, with fewer trials")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/variance"), help="rewards of the policy, plots")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--thoughts", type=int, default=16)
    parser.add_argument("--answers", type=int, default=256)
    args = parser.parse_args()
    found: dict = {"simulation": simulate(20_000 if args.quick else 100_000, args.seed)}
    bernoulli = found["simulation"]["bernoulli"]
    found = {"slope_in_M": bernoulli["slope_in_M"]["K16"], "floor_ratio": bernoulli["floor_ratio"]} | found
    if not args.quick:
        from policy_rewards import sampled_rewards

        args.output_dir.mkdir(parents=True, exist_ok=True)
        found["policy"] = policy_table(sampled_rewards(args))
        draw(found, args.output_dir)
    print_table(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
