"""Scores completions with their task: the columns of a prediction."""

from __future__ import annotations

import inspect
import math
from numbers import Real
from statistics import fmean

from task.errors import UserError, place_of
from task.rewards.router import plain_bool, reward_arguments
from task.runners.event_loop import awaited
from task.task_loader import Task
from trainer.evaluation.batches import Sample

SCORES = ("format", "accuracy")
BLANK = ("completion", "prediction", "sol", "image_size", "processed_size", *SCORES)


def scored(task: Task, record: dict, prompt, samples: list[Sample], decode) -> dict:
    """The prediction of a record from its completions.

    With several completions, `samples` has the columns of each. The record's own completion, prediction and status are
    those of the first; format and accuracy are means over the completions that have one; tokens is the sum.
    """
    image_size = prompt.image_sizes[0] if prompt.image_sizes else None
    processed_size = prompt.processed_sizes[0] if prompt.processed_sizes else None
    sol, keywords = reward_arguments(task, record, image_size, processed_size)
    columns = [_columns(task, sol, keywords, sample, decode(sample.token_ids)) for sample in samples]
    known = {name: value for name, value in keywords.items() if name != "thought_end"}
    prediction = columns[0] | known | {"answer": record["answer"], "sol": sol}
    if len(columns) == 1:
        return prediction
    scores = {name: [column[name] for column in columns if column[name] is not None] for name in SCORES}
    means = {name: fmean(values) if values else None for name, values in scores.items()}
    return prediction | means | {"tokens": sum(column["tokens"] for column in columns), "samples": columns}


def unscored(record: dict, status: str, error: str) -> dict:
    """The prediction of a record that has no completion."""
    known = {"id": record["id"], "question_type": record["question_type"], "answer": record["answer"], "record": record}
    return dict.fromkeys(BLANK) | known | {"tokens": 0, "status": status, "error": error}


def _columns(task: Task, sol, keywords: dict, sample: Sample, completion: str) -> dict:
    if sample.status == "failed":
        blank = {"completion": completion, "prediction": None, "format": None, "accuracy": None}
        return sample.columns | blank | {"status": "tool_error", "tokens": sample.sampled, "error": sample.error}

    def call(name: str, *args):
        # A fault in a task file ends an evaluation: unlike in training, an incomplete metric is worse than none.
        try:
            value = getattr(task, name)(completion, *args, **keywords)
            return awaited(value) if inspect.isawaitable(value) else value
        except Exception as error:
            where = f"{place_of(error, task.path)}: {name} fails on record {keywords['id']!r}"
            raise UserError(f"{where} ({type(error).__name__}: {error}): correct the task or the record.") from error

    parsed = completion if task.parse_answer is None else call("parse_answer")
    accuracy = call("accuracy_reward", sol)
    accuracy = accuracy[0] if isinstance(accuracy, tuple) else accuracy
    return sample.columns | {
        "completion": completion,
        "prediction": parsed,
        "format": _finite(task, "format_reward", keywords["id"], call("format_reward", sol)),
        "accuracy": _finite(task, "accuracy_reward", keywords["id"], accuracy),
        "status": "length" if sample.status == "length" else "parse_fail" if parsed is None else "ok",
        "tokens": sample.sampled,
    }


def _finite(task: Task, name: str, record_id: str, value) -> float | None:
    value = plain_bool(value)
    if value is None:
        return None
    if not isinstance(value, Real) or not math.isfinite(value):
        raise UserError(
            f"{task.path}: {name} gave {value!r} on record {record_id!r}; it must give a finite number or None."
        )
    return float(value)
