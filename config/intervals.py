"""Refuses an interval of saves, evaluations or logs that the strategy of the run does not read."""

from __future__ import annotations

from task.errors import UserError

# interval -> (the setting that decides whether it is read, the values with which it is)
READ_WITH = {
    "save_steps": ("save_strategy", ("steps",)),
    "save_total_limit": ("save_strategy", ("steps", "epoch", "best")),
    "eval_steps": ("eval_strategy", ("steps",)),
    "eval_delay": ("eval_strategy", ("steps", "epoch")),
    "logging_steps": ("logging_strategy", ("steps",)),
}


def check_intervals(args, provenance: dict[str, str]) -> None:
    """Raises UserError for the first interval that a flag or a recipe sets and the run would ignore.

    What a recipe sets may be turned off: by a flag, as `--save_strategy no` does, or by the recipe itself.

    Args:
        args: TrainingArguments, or other settings, which are not checked.
        provenance: setting -> "recipe" or "flag"; a setting that is not in it has its default.
    """
    for interval, (strategy, values) in READ_WITH.items():
        given = provenance.get(interval)
        if given is None or not hasattr(args, strategy) or getattr(args, interval, None) is None:
            continue
        value = str(getattr(getattr(args, strategy), "value", getattr(args, strategy)))
        turned_off = given == "recipe" and strategy in provenance
        if value not in values and not turned_off:
            source = provenance.get(strategy, "default")
            raise UserError(
                f"{interval}={getattr(args, interval):g} would have no effect: {strategy} is {value} ({source}); set "
                f"{strategy} to {values[0]}, or leave {interval} out"
            )
