"""The logged metrics of a run, from whichever file has them, as series over the steps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from report.lines import number, read_lines, read_object

NOT_METRICS = ("step", "epoch", "time", "total_flos")
MOST_POINTS = 2000  # per curve
SPIKE_FACTOR = 3.0  # a gradient norm above this many times the run's mean is marked


def read_history(folder: Path) -> tuple[list[dict], dict]:
    """(log entries in order, the start entry of log.jsonl).

    `log.jsonl` is written while a run trains; runs of older versions have only trainer_state.json, in the folder or in
    the newest checkpoint. Whichever reaches the later step is used.
    """
    lines, _ = read_lines(folder / "log.jsonl")
    start: dict = {}
    live: list[dict] = []
    for entry in lines:
        if entry.get("event") == "start":
            start = entry
        elif number(entry.get("step")) is not None:
            while live and live[-1]["step"] > entry["step"]:  # a resumed run repeats some steps
                live.pop()
            live.append(entry)
        elif entry.get("event") == "end":
            start = {**start, "ended": entry.get("time")}
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: _checkpoint_step(path.name), reverse=True)
    states = (read_object(path / "trainer_state.json") for path in (folder, *checkpoints))
    state = next((found for found in states if found), {})
    saved = state.get("log_history")
    saved = saved if isinstance(saved, list) else []
    saved = [e for e in saved if isinstance(e, dict) and number(e.get("step")) is not None]
    if not start and number(state.get("max_steps")):
        start = {"max_steps": state["max_steps"]}
    return (live, start) if live and (not saved or _last(live) >= _last(saved)) else (saved, start)


def series(history: list[dict]) -> dict[str, list[list[float]]]:
    """{name: [steps, values]} of every logged number, in ascending steps; of two values at a step the later counts."""
    points: dict[str, dict[float, float]] = {}
    for entry in history:
        for name, value in entry.items():
            value = number(value)
            if value is not None and name not in NOT_METRICS:
                points.setdefault(str(name)[:200], {})[number(entry["step"])] = value
    result = {}
    for name, values in points.items():
        steps = sorted(values)
        result[name] = [steps, [values[step] for step in steps]]
    rate = tokens_per_second(history)
    return result | ({"tokens per second": rate} if rate[0] else {})


def checkpoint_series(folder: Path) -> dict[str, list[list[float]]]:
    """{name: [steps, values]} of the evaluations of a run's checkpoints (checkpoints.json of scripts/eval/eval.py)."""
    steps = read_object(folder / "checkpoints.json").get("steps")
    history = []
    for entry in steps if isinstance(steps, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("metrics"), dict) and number(entry.get("step")) is not None:
            metrics = {task: values for task, values in entry["metrics"].items() if isinstance(values, dict)}
            named = {f"eval_{task}/{name}": v for task, values in metrics.items() for name, v in values.items()}
            history.append(named | {"step": entry["step"]})
    return series(history)


def tokens_per_second(history: list[dict]) -> list[list[float]]:
    """[steps, rates] between log entries with TRL's cumulative `num_tokens` and our `time`."""
    known = [(number(e["step"]), number(e.get("num_tokens")), number(e.get("time"))) for e in history]
    known = [point for point in known if None not in point]
    steps, rates = [], []
    for (_, tokens, time), (step, more, later) in pairwise(known):
        if later > time and more > tokens:
            steps.append(step)
            rates.append((more - tokens) / (later - time))
    return [steps, rates]


def spikes(points: list[list[float]]) -> list[float]:
    """Steps whose value exceeds SPIKE_FACTOR times the overall mean: gradient spike score of SPAM (arXiv 2501.06842).

    >>> spikes([[10, 20, 30, 40, 50], [1.0, 1.0, 1.0, 9.0, 1.0]])
    [40]
    """
    mean = sum(points[1]) / len(points[1]) if points[1] else 0.0
    return [step for step, value in zip(*points, strict=True) if value > SPIKE_FACTOR * mean > 0]


def thinned(points: list[list[float]]) -> list[list[float]]:
    """A curve of at most MOST_POINTS points: the minimum and maximum of each interval, so that peaks stay visible."""
    steps, values = points
    if len(steps) <= MOST_POINTS:
        return points
    cuts = [round(i * len(steps) / (MOST_POINTS // 2)) for i in range(MOST_POINTS // 2 + 1)]
    kept = []
    for start, end in pairwise(cuts):
        stretch = range(start, end)
        kept += sorted({min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)})
    return [[steps[i] for i in kept], [values[i] for i in kept]]


def progress(history: list[dict], start: dict) -> dict:
    """The progress of a run: step, max_steps, seconds_left (from `step_time`) and ended; None for unknown values."""
    done = max([0.0, *(number(entry["step"]) for entry in history)])
    total = number(start.get("max_steps"))
    times = [number(entry.get("step_time")) for entry in history]
    times = [time for time in times if time is not None]
    recent = times[-10:]
    left = None
    if total and recent and not start.get("ended"):
        left = max(0.0, total - done) * sum(recent) / len(recent)
    return {"step": done, "max_steps": total, "seconds_left": left, "ended": bool(start.get("ended"))}


def _last(history: list[dict]) -> float:
    return max(number(entry["step"]) for entry in history)


def _checkpoint_step(name: str) -> int:
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdecimal() and tail.isascii() else -1
