"""What the runs of a comparison say: curves over seeds, final metrics, costs, gradient spikes, paired differences."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev

import numpy as np
from comparison_lines import UNTRAINED
from scipy.special import ndtr, stdtrit

AXES = ("tokens", "seconds", "updates")
SPIKE = 10.0  # theta: a gradient spikes if its norm exceeds theta times the mean norm of the run
GRID, SMOOTH = 50, 0.1  # points of a curve; share of a run's steps that its moving average covers


class Run:
    """One finished run.

    Attributes:
        items: record id -> metrics on the test set.
        spent: cumulative tokens, leaves, seconds and step at the end.
        steps, log: the lines of steps.jsonl and of log.jsonl (with a step).
    """

    def __init__(self, folder: Path):
        result = json.loads((folder / "result.json").read_text())
        self.seed, self.items, self.spent = result["seed"], result["items"], result["spent"]
        self.steps = _lines(folder / "steps.jsonl")
        self.log = [line for line in _lines(folder / "log.jsonl") if line.get("step")]

    def mean(self, metric: str) -> float:
        return fmean(item[metric] for item in self.items.values() if metric in item)

    def logged(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a logged metric."""
        return [(line["step"], line[name]) for line in self.log if line.get(name) is not None]

    def at(self, axis: str, step: int) -> float:
        return step if axis == "updates" else self.steps[step - 1][axis]


def _lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def read_runs(folder: Path, lines: list[str]) -> dict[str, list[Run]]:
    """Line -> its finished runs, by seed."""
    found = {}
    for name in lines:
        runs = [Run(path.parent) for path in folder.glob(f"{name}-seed*/result.json")]
        found[name] = sorted(runs, key=lambda run: run.seed)
    return found


def interval_of_means(values) -> tuple[float, float]:
    """95% interval of the mean of a few values, by Student's t; of one value, the value."""
    if len(values) < 2:
        return values[0], values[0]
    half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def curve(runs: list[Run], name: str, axis: str) -> list[tuple[float, ...]]:
    """(x, mean over seeds, low, high) of a logged metric against tokens, seconds or updates.

    Each run is smoothed by a moving average over SMOOTH of its steps. The curve ends where the shortest run ends.
    """
    each = []
    for run in runs:
        points = run.logged(name)
        if points:
            x = np.array([run.at(axis, step) for step, _ in points])
            y = np.array([value for _, value in points])
            width = max(1, round(SMOOTH * len(y))) if not name.startswith("eval_") else 1
            kernel = np.ones(width)
            each.append((x, np.convolve(y, kernel, "same") / np.convolve(np.ones(len(y)), kernel, "same")))
    if not each:
        return []
    first, last = max(x[0] for x, _ in each), min(x[-1] for x, _ in each)
    found = []
    for at in np.linspace(first, last, GRID):
        values = [float(np.interp(at, x, y)) for x, y in each]
        found.append((float(at), fmean(values), *interval_of_means(values)))
    return found


def spikes(run: Run) -> tuple[float, int]:
    """(largest Gradient Spike Score, number of updates with a score above SPIKE).

    The score of update i is |g_i| / mean over the run of |g_j|, |g| the gradient's norm before clipping (the definition
    of SPAM, arXiv 2501.06842, for whole gradients instead of single weights; the paper's own is not published).
    """
    norms = [value for _, value in run.logged("grad_norm")]
    mean = fmean(norms) if norms else 0.0
    scores = [norm / mean for norm in norms] if mean else [0.0]
    return max(scores), sum(score > SPIKE for score in scores)


def matrix(runs: list[Run], metric: str) -> tuple[np.ndarray, list[str]]:
    """(seeds, records) values of a metric, and the ids of the records that all runs have."""
    ids = sorted(set.intersection(*(({i for i, item in run.items.items() if metric in item}) for run in runs)))
    return np.array([[run.items[i][metric] for i in ids] for run in runs]), ids


def difference(a: list[Run], b: list[Run], metric: str, resamples: int = 4000) -> dict | None:
    """Mean of b minus mean of a with its 95% interval, paired by seed and record; None without a common seed.

    Bootstrap: seeds and records are both drawn with replacement. Quantiles are moved outwards for few seeds, as in
    `trainer/evaluation/intervals.py`. With one seed the interval is over records only.
    """
    common = sorted({run.seed for run in a} & {run.seed for run in b})
    if not common:
        return None
    sides = [[run for run in runs if run.seed in common] for runs in (a, b)]
    (first, ids), (second, others) = (matrix(runs, metric) for runs in sides)
    assert ids == others and ids, "runs were tested on different records"
    gaps, rng, seeds = second - first, np.random.default_rng(1), len(common)
    means = []
    for _ in range(resamples):
        by_seed = gaps[rng.integers(0, seeds, seeds)]
        means.append(by_seed[:, rng.integers(0, len(ids), len(ids))].mean())
    tail = 0.025 if seeds < 2 else float(ndtr(math.sqrt(seeds / (seeds - 1)) * stdtrit(seeds - 1, 0.025)))
    low, high = np.quantile(means, [tail, 1 - tail])
    return {"difference": float(gaps.mean()), "interval": [float(low), float(high)], "seeds": seeds}


def cost_per_step(runs: list[Run]) -> dict[str, float]:
    """Medians over updates and means over seeds: seconds and sampled tokens per update, unique share of row tokens."""
    seconds, tokens, unique = [], [], []
    for run in runs:
        totals = [{"seconds": 0.0, "tokens": 0}, *run.steps]
        gaps = list(pairwise(totals))
        seconds.append(median(b["seconds"] - a["seconds"] for a, b in gaps))
        tokens.append(fmean(b["tokens"] - a["tokens"] for a, b in gaps))
        whole = dict(run.logged("tokens/trained"))
        unique.append(fmean(value / whole[step] for step, value in run.logged("tokens/unique")))
    return {"seconds": fmean(seconds), "tokens": fmean(tokens), "unique": fmean(unique)}


def summary(runs: dict[str, list[Run]], metric: str, reference: str) -> dict[str, dict]:
    """Line -> what the table shows of it; lines without a finished run are left out."""
    costs = {name: cost_per_step(found) for name, found in runs.items() if found and name != UNTRAINED}
    base = costs.get(reference)
    rows = {}
    for name, found in runs.items():
        if not found:
            continue
        values = [run.mean(metric) for run in found]
        row = {"runs": len(found), "mean": fmean(values), "interval": interval_of_means(values), "values": values}
        parts = sorted({part for item in found[0].items.values() for part in item if part.startswith("accuracy of ")})
        row["parts"] = {part: fmean(run.mean(part) for run in found) for part in parts}
        row["output_tokens"] = fmean(run.mean("tokens") for run in found)
        if name in costs:
            row |= {key: fmean(run.spent[key] for run in found) for key in ("tokens", "leaves", "seconds")}
            row |= {"updates": fmean(run.spent["step"] for run in found), "per_step": costs[name]}
            row["relative_cost"] = costs[name]["seconds"] / base["seconds"] if base else None
            scores = [spikes(run) for run in found]
            row |= {"spike_score": max(s for s, _ in scores), "spikes": sum(n for _, n in scores)}
        rows[name] = row
    return rows


def differences(runs: dict[str, list[Run]], metric: str) -> dict[str, dict]:
    """{"B - A": `difference`}, for every pair of lines that have runs with a common seed."""
    names = [name for name, found in runs.items() if found]
    pairs = {f"{b} - {a}": difference(runs[a], runs[b], metric) for i, a in enumerate(names) for b in names[i + 1 :]}
    return {name: found for name, found in pairs.items() if found}
