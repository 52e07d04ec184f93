"""Metrics of a generation: sums and counts of one process, which the trainer reduces over all processes."""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import contextmanager

import numpy as np

from trainer.rollout import Rollout

# What TRL's loss reports as a mean over the trained tokens of a micro-batch.
TOKEN_MEANS = (
    "kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio",
)  # fmt: skip


def rollout_sums(rollout: Rollout) -> dict[str, tuple[float, float]]:
    """Name -> (sum, count) over one process; the metric is the quotient of the sums over all processes.

    tokens/generated: sampled tokens per prompt; tokens/unique: these and the prompt's own tokens, each once;
    tokens/trained: tokens per prompt of the rows that a dense pass computes; thought and answer lengths in tokens;
    rollout/failed_share: share of prompts.
    """
    prompts = len(rollout.trees)
    has_thoughts = any(node.kind == "thought" for tree in rollout.trees for node in tree.nodes)
    nodes = [node for tree in rollout.trees for node in tree.nodes if node.status != "failed"]
    thoughts = [node for node in nodes if node.kind == "thought"]
    answers = [node for node in nodes if node.kind == "answer"]
    lengths = [len(prompt.ids) for prompt in rollout.prompts]
    generated = sum(len(node.token_ids) for node in nodes if node.sampled)
    rows = sum(lengths[t] + len(rollout.completion(row)) for row, t in enumerate(rollout.row_tree))
    sums = {
        "tokens/generated": (generated, prompts),
        "tokens/unique": (generated + sum(lengths), prompts),
        "tokens/trained": (rows, prompts),
        "rollout/failed_share": (sum(rollout.failed), prompts),
        "rollout/cut_share": (sum(node.status in ("length", "unclosed") for node in nodes), len(nodes)),
    }
    if has_thoughts:  # failed trees have thoughts too, so every process reports the same names
        sums |= {
            "thought/length": (sum(len(node.token_ids) for node in thoughts), len(thoughts)),
            "thought/unclosed_share": (sum(node.status == "unclosed" for node in thoughts), len(thoughts)),
            "answer/length": (sum(len(node.token_ids) for node in answers), len(answers)),
        }
    return sums


def length_correlation(advantages: np.ndarray, lengths: np.ndarray) -> float:
    """Pearson correlation of (N,) advantages and completion lengths of rows with an advantage; NaN if one is constant.

    Above 0 the update favours long completions, a bias that per-row normalisation of the loss adds to.
    """
    kept = advantages != 0
    if kept.sum() < 2 or np.ptp(advantages[kept]) == 0 or np.ptp(lengths[kept]) == 0:
        return float("nan")
    return float(np.corrcoef(advantages[kept], lengths[kept])[0, 1])


class Mean(float):
    """A mean that knows how many values it is the mean of, so that it can be pooled with others.

    >>> pooled([Mean(1.0, 3), Mean(0.0, 1), Mean(math.nan, 0)])
    0.75
    """

    count: float

    def __new__(cls, value: float, count: float):
        self = super().__new__(cls, value)
        self.count = count
        return self


class Largest(float):
    """A maximum: pooled with others it is the largest, and not their mean."""


def pooled(values: list[float]) -> float | None:
    """The mean of means, each weighted by its count (a plain number by 1); None if there is nothing to average.

    >>> pooled([Largest(1.0), Largest(3.0)])
    3.0
    """
    if values and all(isinstance(value, Largest) for value in values):
        return max(values)
    counts = [getattr(value, "count", 1.0) for value in values]
    known = [(value, count) for value, count in zip(values, counts, strict=True) if count and not math.isnan(value)]
    return sum(value * count for value, count in known) / sum(count for _, count in known) if known else None


def pool_all(metrics: dict[str, list[float]]) -> None:
    """Each list of values becomes the one value that is logged; a name without any goes: trackers take no None."""
    for name, values in [*metrics.items()]:
        mean = pooled(values)
        if mean is None:
            del metrics[name]
        else:
            metrics[name] = [mean]


def weigh_token_means(logged: dict[str, list], tokens: float) -> None:
    """The last value of TRL's means over tokens becomes a `Mean` over `tokens`: micro-batches differ in how many."""
    for name in TOKEN_MEANS:
        if name in logged:
            logged[name][-1] = Mean(logged[name][-1], tokens)


@contextmanager
def filed_under(prefix: str, metrics: dict[str, dict[str, list]]):
    """Files what is added to `metrics["train"]` inside the block, the value of the block, under `prefix/`."""
    outer = metrics["train"]
    inner = metrics["train"] = defaultdict(list)
    try:
        yield inner
    finally:
        metrics["train"] = outer
        for name, values in inner.items():
            outer[f"{prefix}/{name}"].extend(values)


def replace_clipped_ratio(logged: dict[str, list]) -> None:
    """Corrects TRL's metrics of a generation whose completions end with a tag.

    TRL takes a completion without an end token as cut off.
    """
    logged["completions/clipped_ratio"][-1] = logged["rollout/cut_share"][-1]
    for name in ("mean", "min", "max"):
        del logged[f"completions/{name}_terminated_length"]  # of completions with an end token


def replace_last(logged, values: list) -> None:
    """The last entries of a bounded queue of TRL's completions table become `values`."""
    for _ in values:
        logged.pop()
    logged.extend(values)
