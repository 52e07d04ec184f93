"""The checkpoints of a run and their metrics by step: as a table, as curves, and as checkpoints.json."""

import argparse
import re
from pathlib import Path

from prediction_files import write_json

from task.errors import UserError

WIDTH = 40  # characters of the longest bar


def selected_checkpoints(args: argparse.Namespace) -> dict[int | None, str | None]:
    """{step: folder} of the checkpoints that --checkpoints selects, by step; {None: None} without the flag.

    Raises UserError if there are none, or if a requested one does not exist.
    """
    if not args.checkpoints:
        return {None: None}
    run = Path(args.adapter_path or args.model_name_or_path)
    found = {}
    for folder in run.glob("checkpoint-*") if run.is_dir() else ():
        if match := re.fullmatch(r"checkpoint-([0-9]+)", folder.name):
            found[int(match[1])] = str(folder)
    if not found:
        raise UserError(
            f"{run} holds no folder checkpoint-STEP: name the output_dir of a training run that saved some."
        )
    wanted = sorted(found) if "all" in args.checkpoints else sorted({int(step) for step in args.checkpoints})
    for step in wanted:
        if step not in found:
            there = ", ".join(map(str, sorted(found)))
            raise UserError(f"--checkpoints {step}: {run} has no checkpoint-{step}, there are {there}.")
    return {step: found[step] for step in wanted}


def write_by_step(folder: Path, results: dict[int, dict]) -> None:
    """checkpoints.json: {"steps": [{"step": , "metrics": , "intervals": } or {"step": , "fault": why}, ...]}."""
    keys = ("metrics", "intervals", "fault")
    steps = [{"step": step} | {key: r[key] for key in keys if key in r} for step, r in results.items()]
    write_json(folder / "checkpoints.json", {"steps": steps})


def metrics_table(results: dict[int | None, dict]) -> str:
    """The metrics by task type: one row per metric, one column per checkpoint. A single evaluation shows its intervals.

    Checkpoints without metrics are listed above the table, with the reason.
    """
    lines = [f"step {step} is left out: {result['fault']}" for step, result in results.items() if "fault" in result]
    results = _evaluated(results)
    first = next(iter(results.values()))
    for task_type in first["metrics"]:
        of_steps = [result["metrics"].get(task_type, {}) for result in results.values()]
        names = list(dict.fromkeys(name for metrics in of_steps for name in metrics))
        names = [name for name in names if not name.startswith("n_") or any(m.get(name) for m in of_steps)]
        lines.append(task_type)
        if None not in results:
            lines.append(f"  {'step':32}" + "".join(f"{step:>11}" for step in results))
        for name in names:
            line = f"  {name:32}" + "".join(_cell(metrics.get(name)) for metrics in of_steps)
            interval = first["intervals"].get(task_type, {}).get(name)
            if None in results and interval:
                line += f"  [{interval[0]:.4f}, {interval[1]:.4f}]"
            lines.append(line)
    return "\n".join(lines)


def curves(results: dict[int, dict], metric: str = "accuracy") -> str:
    """A metric by step as bars, scaled from the lowest value to the highest; one block per task type."""
    lines, results = [], _evaluated(results)
    for task_type in next(iter(results.values()))["metrics"]:
        points = [(step, result["metrics"].get(task_type, {}).get(metric)) for step, result in results.items()]
        points = [(step, value) for step, value in points if value is not None]
        if not points:
            continue
        low, high = min(value for _, value in points), max(value for _, value in points)
        lines.append(f"{task_type}, {metric} by step")
        for step, value in points:
            share = (value - low) / (high - low) if high > low else 1.0
            lines.append(f"  {step:>8} {value:9.4f}  {'#' * max(1, round(share * WIDTH))}")
    return "\n".join(lines)


def _evaluated(results: dict[int | None, dict]) -> dict[int | None, dict]:
    return {step: result for step, result in results.items() if "fault" not in result}


def _cell(value) -> str:
    if value is None:
        return f"{'':>11}"
    return f"{value:11.4f}" if isinstance(value, float) else f"{value:>11}"
