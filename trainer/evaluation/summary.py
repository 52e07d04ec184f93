"""Predictions -> metrics and their intervals by task type. Imports no torch, since the smoke test uses it too."""

from __future__ import annotations

from numbers import Real
from statistics import fmean

from task.errors import UserError, place_of
from task.rewards.router import plain_bool
from task.task_loader import Task
from trainer.evaluation.intervals import mean_interval
from trainer.evaluation.item_metrics import item_metrics, pass_metrics, samples_of

# Scored: parsed, not parsable, cut at max_new_tokens. Not scored: bad media, out of memory, a failed tool.
STATUSES = ("ok", "parse_fail", "length", "load_error", "oom", "tool_error")


def summarise(
    predictions: list[dict], tasks: dict[str, Task], pass_threshold: float = 1.0
) -> dict[str, dict[str, float]]:
    """{task_type: metrics}: the task's compute_metrics, mean accuracy and format, pass@k, and the counts.

    Metrics cover the completions that have scores; with several completions per record, accuracy, format and pass@k are
    means over records of the record's own metric. `n` counts all records; `n_load_error`, `n_parse_fail` and so on
    count completions by status. Ids must be unique, so padded duplicates cannot be counted.
    """
    result = {}
    for task_type, items in _by_task(predictions).items():
        samples = [sample for item in items for sample in samples_of(item)]
        metrics = _task_metrics(tasks[task_type], samples) if samples else {}
        loaded = [item for item in items if samples_of(item)]
        for name in ("accuracy", "format"):
            values = [item[name] for item in loaded if item[name] is not None]
            if values:
                metrics[name] = fmean(values)
        passed = [pass_metrics(item, pass_threshold) for item in loaded]
        for name in dict.fromkeys(name for found in passed for name in found):
            metrics[name] = fmean(found[name] for found in passed if name in found)
        metrics["n"] = len(items)
        statuses = [sample["status"] for item in items for sample in item.get("samples") or [item]]
        metrics |= {f"n_{status}": statuses.count(status) for status in STATUSES[1:]}
        result[task_type] = metrics
    return result


def intervals(
    predictions: list[dict], tasks: dict[str, Task], summary: dict, pass_threshold: float = 1.0
) -> dict[str, dict[str, list[float]]]:
    """{task_type: {metric: [low, high]}}: 95% intervals over records of the metrics of `summarise`.

    Only metrics that are means over records have an interval: F1, average precision and counts do not, and neither does
    a task's own metric that is equal on every record.
    """
    result = {}
    for task_type, items in _by_task(predictions).items():
        try:
            by_record = [item_metrics(item, tasks[task_type], pass_threshold) for item in items]
        except Exception:  # a compute_metrics that needs more than one prediction
            by_record = [item_metrics(item, None, pass_threshold) for item in items]
        found = {}
        for name, mean in summary[task_type].items():
            values = [metrics[name] for metrics in by_record if name in metrics]
            ours = name in ("accuracy", "format") or name.startswith(("pass@", "mean@"))
            if len(values) < 2 or abs(fmean(values) - mean) > 1e-9 * max(1.0, abs(mean)):
                continue
            if ours or len(set(values)) > 1:
                found[name] = list(mean_interval(values))
        result[task_type] = found
    return result


def _by_task(predictions: list[dict]) -> dict[str, list[dict]]:
    ids = [p["id"] for p in predictions]
    assert len(set(ids)) == len(ids), "two predictions have the same id"
    grouped: dict[str, list[dict]] = {}
    for prediction in predictions:
        grouped.setdefault(prediction["question_type"], []).append(prediction)
    return grouped


def _task_metrics(task: Task, predictions: list[dict]) -> dict[str, float]:
    if task.compute_metrics is None:
        return {}
    try:
        found = task.compute_metrics(predictions, thought_end=task.thought_end)
        metrics = {name: plain_bool(value) for name, value in found.items()}
    except Exception as error:
        where = f"{place_of(error, task.path)}: compute_metrics fails on {len(predictions)} predictions"
        raise UserError(f"{where} ({type(error).__name__}: {error}): correct the task file.") from error
    wrong = next((name for name, value in metrics.items() if value is not None and not isinstance(value, Real)), None)
    if wrong is not None:
        raise UserError(
            f"{task.path}: compute_metrics gave {metrics[wrong]!r} as {wrong!r}: a metric must be a number or None."
        )
    return metrics
