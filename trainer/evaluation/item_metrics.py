"""The metrics of a single prediction, for comparisons and intervals over items; and pass@k."""

from __future__ import annotations

import math
from statistics import fmean

from task.task_loader import Task

UNSCORED = ("load_error", "oom", "tool_error")  # statuses without scores: such items are counted but enter no mean


def samples_of(prediction: dict) -> list[dict]:
    """Each completion of a record as a separate prediction; those without scores are left out."""
    shared = {name: value for name, value in prediction.items() if name != "samples"}
    samples = [shared | sample for sample in prediction.get("samples") or [{}]]
    return [sample for sample in samples if sample["status"] not in UNSCORED]


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The probability that k samples, drawn without replacement, include one that passed (Chen et al., 2021, eq. 1).

    The unbiased estimator 1 - C(n - c, k) / C(n, k), in integers up to the final division.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    assert 0 <= passed <= samples and 1 <= k <= samples, (samples, passed, k)
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def item_metrics(prediction: dict, task: Task | None, pass_threshold: float = 1.0) -> dict[str, float]:
    """Every finite metric of one record: format, accuracy, the task's compute_metrics on it alone, and pass@k.

    With several samples each metric is a mean over the samples that have it, and pass@k, for powers of two k, is over
    the samples with an accuracy; a sample passes if its accuracy is at least `pass_threshold`. {} for a record without
    scores.
    """
    samples = samples_of(prediction)
    found: dict[str, list[float]] = {}
    for sample in samples:
        metrics = {"accuracy": sample.get("accuracy"), "format": sample.get("format")}
        if task is not None and task.compute_metrics is not None:
            own = task.compute_metrics([sample], thought_end=task.thought_end)
            metrics |= {k: v for k, v in own.items() if k not in (*metrics, "count")}
        for name, value in metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(name, []).append(float(value))
    metrics = {name: fmean(values) for name, values in found.items()}
    return metrics | pass_metrics(prediction, pass_threshold)


def pass_metrics(prediction: dict, pass_threshold: float) -> dict[str, float]:
    """{"pass@1": , "pass@2": , ..., "mean@n": } of a record with several samples; {} for one sample or no scores."""
    if "samples" not in prediction:
        return {}
    scores = [sample["accuracy"] for sample in samples_of(prediction) if sample["accuracy"] is not None]
    if not scores:
        return {}
    passed = sum(score >= pass_threshold for score in scores)
    powers = [2**i for i in range(len(scores).bit_length()) if 2**i <= len(scores)]
    metrics = {f"pass@{k}": pass_at_k(len(scores), passed, k) for k in powers}
    return metrics | {f"mean@{len(prediction['samples'])}": fmean(scores)}
