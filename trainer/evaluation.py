"""Evaluation: rows in, one prediction a row out, metrics by the tasks' own functions.

The trainer's `evaluate()` and scripts/eval/eval.py both stand on `predict` and `summarise`, so that a figure seen
during training and one measured afterwards are the same figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from numbers import Real
from statistics import fmean

from dataset.dataset_grpo import load_media, read_row
from dataset.media import MediaError
from model.reward_func import reward_arguments
from task.task_loader import Task
from trainer.policies.chain import ChainPolicy

# A prediction could not be made (load_error), was cut at max_new_tokens (length), does not parse, or is fine.
STATUSES = ("ok", "parse_fail", "length", "load_error")
WINDOW_BATCHES = 8  # batches encoded, and sorted by prompt length, at a time: bounds the pictures in memory


def predict(engine, module, rows: Iterable[dict], tasks: dict[str, Task], **settings) -> list[dict]:
    """All predictions of `predict_windows`, in the order of `rows`."""
    return [item for window in predict_windows(engine, module, rows, tasks, **settings) for item in window]


def predict_windows(
    engine,
    module,
    rows: Iterable[dict],
    tasks: dict[str, Task],
    *,
    max_new_tokens: int,
    batch_size: int,
    thought_end: str = "</think>",
    on_bad_media: str = "error",
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[list[dict]]:
    """One completion a row, scored by the row's task; yields the predictions window by window, in the order of `rows`.

    Args:
        engine: grows the completions; its sampling (greedy or not) is the caller's choice, as are eval() and no_grad.
        module: the VLMModule that encodes a row.
        rows: dataset rows (columns `prompt` and `record`).
        batch_size: prompts decoded together; rows of similar length go together, results keep the input order.
        on_bad_media: "error" raises the MediaError, "skip" gives a prediction with status load_error.
        progress: called after each batch with (items done in it, tokens generated in it).

    Yields:
        Lists of predictions: id, question_type, completion (special tokens removed), prediction (what parse_answer
        made of it, task's frame), answer (original frame), sol (task's frame), image_size and processed_size ((w, h)
        or None), format, accuracy (None: the task abstains), status (one of STATUSES), error (why, for load_error),
        record. A load_error has neither completion nor scores.
    """
    policy = ChainPolicy(1, max_new_tokens)
    for window in _chunks(rows, WINDOW_BATCHES * batch_size):
        records = [read_row(row) for row in window]
        encoded, predictions = [], [None] * len(records)
        for place, record in enumerate(records):
            try:
                media = load_media(record)
            except MediaError as error:
                if on_bad_media == "error":
                    raise
                predictions[place] = _load_error(record, error)
                continue
            try:
                encoded.append((place, module.encode(record["messages"], *media)))
            except ValueError as error:
                raise ValueError(f"record {record['id']!r}: {error}") from error
        encoded.sort(key=lambda item: len(item[1].ids))
        for batch in _chunks(encoded, batch_size):
            ids = [records[place]["id"] for place, _ in batch]
            trees = engine.grow([prompt for _, prompt in batch], policy, ids)
            for (place, prompt), tree in zip(batch, trees, strict=True):
                (leaf,) = tree.leaves()
                completion = engine.tokenizer.decode(tree.tokens(leaf), skip_special_tokens=True)
                cut = tree.nodes[leaf].status == "length"
                predictions[place] = _scored(tasks, records[place], prompt, completion, cut, thought_end)
            if progress is not None:
                progress(len(batch), sum(tree.unique_tokens() for tree in trees))
        if progress is not None and len(encoded) < len(records):
            progress(len(records) - len(encoded), 0)
        yield predictions


def summarise(predictions: list[dict], tasks: dict[str, Task]) -> dict[str, dict[str, float]]:
    """{task_type: metrics}: the task's compute_metrics, mean accuracy and format, and the counts.

    Every metric is over the items that could be loaded. `n` counts all items, `n_load_error`, `n_parse_fail` and
    `n_length` the items of that status. Padded duplicates cannot count: an id that occurs twice is an error of ours.
    """
    ids = [p["id"] for p in predictions]
    assert len(set(ids)) == len(ids), "a prediction is there twice"
    grouped: dict[str, list[dict]] = {}
    for prediction in predictions:
        grouped.setdefault(prediction["question_type"], []).append(prediction)
    result = {}
    for task_type, items in grouped.items():
        loaded = [p for p in items if p["status"] != "load_error"]
        metrics = _task_metrics(tasks[task_type], loaded) if loaded else {}
        for name in ("accuracy", "format"):
            values = [p[name] for p in loaded if p[name] is not None]
            if values:
                metrics[name] = fmean(values)
        metrics["n"] = len(items)
        for status in STATUSES[1:]:
            metrics[f"n_{status}"] = sum(p["status"] == status for p in items)
        result[task_type] = metrics
    return result


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


def _scored(tasks: dict[str, Task], record: dict, prompt, completion: str, cut: bool, thought_end: str) -> dict:
    task = tasks[record["question_type"]]
    image_size = prompt.image_sizes[0] if prompt.image_sizes else None
    processed_size = prompt.processed_sizes[0] if prompt.processed_sizes else None
    sol, keywords = reward_arguments(task, record, image_size, processed_size, thought_end)

    def call(name: str, *args):
        # A fault in a task file ends an evaluation: unlike in training, a figure with silent holes is worse than none.
        try:
            return getattr(task, name)(completion, *args, **keywords)
        except Exception as error:
            where = f"{task.path}: {name} fails on record {record['id']!r}"
            raise ValueError(f"{where} ({type(error).__name__}: {error}): correct the task or the record.") from error

    parsed = completion if task.parse_answer is None else call("parse_answer")
    accuracy = call("accuracy_reward", sol)
    accuracy = accuracy[0] if isinstance(accuracy, tuple) else accuracy
    status = "length" if cut else "parse_fail" if parsed is None else "ok"
    known = {name: value for name, value in keywords.items() if name != "thought_end"}
    return known | {
        "completion": completion,
        "prediction": parsed,
        "answer": record["answer"],
        "sol": sol,
        "format": _finite(task, "format_reward", record, call("format_reward", sol)),
        "accuracy": _finite(task, "accuracy_reward", record, accuracy),
        "status": status,
    }


def _load_error(record: dict, error: MediaError) -> dict:
    blank = dict.fromkeys(("completion", "prediction", "sol", "image_size", "processed_size", "format", "accuracy"))
    known = {"id": record["id"], "question_type": record["question_type"], "answer": record["answer"], "record": record}
    return blank | known | {"status": "load_error", "error": str(error)}


def _finite(task: Task, name: str, record: dict, value) -> float | None:
    if value is None:
        return None
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(
            f"{task.path}: {name} gave {value!r} on record {record['id']!r}; it must give a finite number or None."
        )
    return float(value)
