"""The best checkpoint of a run: which values of `metric_for_best_model` are better."""

from __future__ import annotations

from task.errors import UserError
from task.rewards.directions import direction


def greater_is_better(metric: str | None, stated: bool | None, tasks: dict) -> bool | None:
    """Whether higher values of `metric_for_best_model`, TASK/NAME as in the log, are better; None without a metric.

    Args:
        stated: the argument `greater_is_better`; needed only where METRICS of the task file does not name the metric.

    Raises:
        UserError: the direction is neither declared nor stated, or stated other than declared.
    """
    if metric is None:
        return stated
    task_name, _, name = metric.removeprefix("eval_").partition("/")
    task = tasks.get(task_name)
    known = direction(name, task.metrics if task else {})
    if known is None and stated is None:
        named = f"METRICS of {task.path} does not name it" if task else f"there is no task {task_name}"
        raise UserError(
            f"metric_for_best_model={metric}: whether lower or higher values are better is unknown ({named}): "
            "set greater_is_better, or declare it in METRICS of the task file"
        )
    if None not in (known, stated) and stated != (known == "higher"):
        raise UserError(
            f"metric_for_best_model={metric} is better when {known}, but greater_is_better is {stated}: leave it out"
        )
    return stated if known is None else known == "higher"
