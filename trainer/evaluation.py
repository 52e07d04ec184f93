"""Evaluation: rows in, one prediction a row out, metrics by the tasks' own functions.

The trainer's `evaluate()` and scripts/eval/eval.py both stand on this file, so that a figure seen during training and
one measured afterwards are the same figure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby, islice
from statistics import fmean

from dataset.dataset_grpo import load_media, read_row
from dataset.media import MediaError
from task.task_loader import Task
from trainer.evaluation_batches import BatchGrower, Unit
from trainer.intervals import mean_interval
from trainer.item_figures import item_figures, pass_figures, samples_of
from trainer.policies.chain import ChainPolicy
from trainer.policies.segment import Policy
from trainer.scoring import scored, unscored

# Fine, does not parse, cut at max_new_tokens; no completion that counts: bad media, out of memory, a tool that failed.
STATUSES = ("ok", "parse_fail", "length", "load_error", "oom", "tool_error")
WINDOW_BATCHES = 8  # batches encoded, and sorted by prompt length, at a time: bounds the pictures in memory

PolicyOf = Callable[[Task, list[dict]], Policy]


def predict(engine, module, rows: Iterable[dict], tasks: dict[str, Task], **settings) -> list[dict]:
    """All predictions of `predict_batches`, in the order of `rows`."""
    found = {}
    for batch in predict_batches(engine, module, rows, tasks, **settings):
        found |= batch
    return [found[place] for place in sorted(found)]


def predict_batches(
    engine,
    module,
    rows: Iterable[dict],
    tasks: dict[str, Task],
    *,
    max_new_tokens: int,
    batch_size: int,
    thought_end: str = "</think>",
    on_bad_media: str = "error",
    num_samples: int = 1,
    seed: int | None = None,
    policy_of: PolicyOf | None = None,
    done: Collection[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[dict[int, dict]]:
    """`num_samples` completions a row, scored by the row's task; yields {place in `rows`: prediction} batch by batch.

    Which rows share a batch, and what the batch draws, depends on the rows and settings alone and not on `done`: a run
    that was stopped and goes on gives the same predictions.

    Args:
        engine: grows the completions; its sampling (greedy or not) is the caller's choice, as are eval() and no_grad.
        module: the VLMModule that encodes a row.
        rows: dataset rows (columns `prompt` and `record`).
        batch_size: completions decoded together; prompts of similar length go together. Where memory runs out, the
            batch is halved.
        on_bad_media: "error" raises the MediaError, "skip" gives a prediction with status load_error.
        seed: of sampled completions; torch's default generator is then seeded anew for each batch.
        policy_of: gives the policy for rows of a task with an environment (make_environment): called for each batch
            with the task and its records, one leaf a tree; a method `report(tree, leaf)` of it gives further columns of
            the prediction. None: these rows are completed as all others are.
        done: ids of rows that are left out, though they keep their place in a batch.
        progress: called after each batch with (rows done in it, tokens sampled in it).

    A prediction: id, question_type, completion (special tokens removed), prediction (what parse_answer made of it,
    task's frame), answer (original frame), sol (task's frame), image_size and processed_size ((w, h) or None), format,
    accuracy (None: the task abstains), status (one of STATUSES), tokens (sampled), error (why, where there are no
    scores), record; with `num_samples` above 1 also samples (see `trainer.scoring.scored`).
    """

    def agent(record: dict) -> str:
        task = tasks[record["question_type"]]
        return task.name if policy_of is not None and task.make_environment is not None else ""

    def make_policy(units: list[Unit]) -> Policy:
        record = units[0].record
        if agent(record):
            return policy_of(tasks[record["question_type"]], [unit.record for unit in units])
        return ChainPolicy(units[0].count, max_new_tokens)

    done = set(done)
    grower = BatchGrower(engine, make_policy, seed)
    size = max(1, batch_size // num_samples)  # records
    for window in _chunks(enumerate(map(read_row, rows)), WINDOW_BATCHES * size):
        if all(record["id"] in done for _, record in window):
            continue
        units, lost = _encode(module, window, on_bad_media)
        if lost := {place: item for place, item in lost.items() if item["id"] not in done}:
            _report(progress, lost)
            yield lost
        # batches of one kind of policy; in each kind by length
        units.sort(key=lambda unit: (agent(unit.record), len(unit.prompt.ids)))
        for kind, members in groupby(units, key=lambda unit: agent(unit.record)):
            for batch in _chunks(members, size):
                if all(unit.record["id"] in done for unit in batch):
                    continue
                grown = grower.grow(_samples_as_units(batch, num_samples, apart=bool(kind)))
                samples = _joined(grown, num_samples) if kind else grown
                found = {
                    unit.place: _prediction(tasks, unit, sample, engine.tokenizer, thought_end)
                    for unit, sample in zip(batch, samples, strict=True)
                    if unit.record["id"] not in done
                }
                _report(progress, found)
                yield found


def summarise(
    predictions: list[dict], tasks: dict[str, Task], pass_threshold: float = 1.0
) -> dict[str, dict[str, float]]:
    """{task_type: metrics}: the task's compute_metrics, mean accuracy and format, pass@k, and the counts.

    Every metric is over the completions that have scores; with several a record, accuracy, format and pass@k are means
    over records of the record's own figure. `n` counts all records, `n_load_error`, `n_parse_fail` and so on the
    completions of that status. Padded duplicates cannot count: an id that occurs twice is an error of ours.
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
        passed = [pass_figures(item, pass_threshold) for item in loaded]
        for name in dict.fromkeys(name for figures in passed for name in figures):
            metrics[name] = fmean(figures[name] for figures in passed if name in figures)
        metrics["n"] = len(items)
        statuses = [sample["status"] for item in items for sample in item.get("samples") or [item]]
        metrics |= {f"n_{status}": statuses.count(status) for status in STATUSES[1:]}
        result[task_type] = metrics
    return result


def intervals(
    predictions: list[dict], tasks: dict[str, Task], summary: dict, pass_threshold: float = 1.0
) -> dict[str, dict[str, list[float]]]:
    """{task_type: {metric: [low, high]}}: 95% intervals over records of the metrics of `summarise`.

    Only metrics that are means over records have one: F1, average precision and counts have none, nor has a task's own
    metric that is the same on every record.
    """
    result = {}
    for task_type, items in _by_task(predictions).items():
        try:
            figures = [item_figures(item, tasks[task_type], pass_threshold) for item in items]
        except Exception:  # a compute_metrics that needs more than one prediction
            figures = [item_figures(item, None, pass_threshold) for item in items]
        found = {}
        for name, mean in summary[task_type].items():
            values = [figure[name] for figure in figures if name in figure]
            ours = name in ("accuracy", "format") or name.startswith(("pass@", "mean@"))
            if len(values) < 2 or abs(fmean(values) - mean) > 1e-9 * max(1.0, abs(mean)):
                continue
            if ours or len(set(values)) > 1:
                found[name] = list(mean_interval(values))
        result[task_type] = found
    return result


def _by_task(predictions: list[dict]) -> dict[str, list[dict]]:
    ids = [p["id"] for p in predictions]
    assert len(set(ids)) == len(ids), "a prediction is there twice"
    grouped: dict[str, list[dict]] = {}
    for prediction in predictions:
        grouped.setdefault(prediction["question_type"], []).append(prediction)
    return grouped


def _task_metrics(task: Task, predictions: list[dict]) -> dict[str, float]:
    if task.compute_metrics is None:
        return {}
    try:
        return dict(task.compute_metrics(predictions))
    except Exception as error:
        where = f"{task.path}: compute_metrics fails on {len(predictions)} predictions"
        raise ValueError(f"{where} ({type(error).__name__}: {error}): correct the task file.") from error


def _chunks(items: Iterable, size: int) -> Iterator[list]:
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


def _encode(module, window, on_bad_media: str) -> tuple[list[Unit], dict[int, dict]]:
    """The units of a window, and the predictions of the records whose media cannot be used."""
    units, lost = [], {}
    for place, record in window:
        try:
            media = load_media(record)
        except MediaError as error:
            if on_bad_media == "error":
                raise
            lost[place] = unscored(record, "load_error", str(error))
            continue
        try:
            units.append(Unit(place, record, module.encode(record["messages"], *media)))
        except ValueError as error:
            raise ValueError(f"record {record['id']!r}: {error}") from error
    return units, lost


def _samples_as_units(batch, num_samples: int, apart: bool) -> list[Unit]:
    """One unit a record for all its completions, or, where each needs a tree of its own, one a completion."""
    if apart:
        return [Unit(unit.place, unit.record, unit.prompt, first=i) for unit in batch for i in range(num_samples)]
    return [Unit(unit.place, unit.record, unit.prompt, count=num_samples) for unit in batch]


def _joined(grown: list, num_samples: int) -> list:
    """The completions of each record, None where one of them did not fit in memory."""
    return [None if None in part else [one for (one,) in part] for part in _chunks(grown, num_samples)]


def _prediction(tasks: dict[str, Task], unit: Unit, samples, tokenizer, thought_end: str) -> dict:
    if samples is None:
        length = len(unit.prompt.ids)
        return unscored(unit.record, "oom", f"a prompt of {length} tokens and its completion do not fit in memory")

    def decode(token_ids: list[int]) -> str:
        return tokenizer.decode(token_ids, skip_special_tokens=True)

    return scored(tasks[unit.record["question_type"]], unit.record, unit.prompt, samples, decode, thought_end)


def _report(progress, found: dict[int, dict]) -> None:
    if progress is not None:
        progress(len(found), sum(item["tokens"] for item in found.values()))
