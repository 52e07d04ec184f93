"""Evaluation: dataset rows -> one prediction per row, scored by the tasks' own functions.

The trainer's `evaluate()` and scripts/eval/eval.py both use this module, so metrics during training and metrics
measured afterwards are computed in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice
from threading import Lock

from dataset.dataset_grpo import load_media, read_row
from dataset.media import MediaError
from task.errors import UserError
from task.rewards.router import AT_ONCE
from task.task_loader import Task
from trainer.evaluation.batches import BatchGrower, Unit
from trainer.evaluation.scoring import scored, unscored
from trainer.policies.chain import ChainPolicy
from trainer.policies.policy import Policy

WINDOW_BATCHES = 8  # batches that are encoded and sorted by prompt length together; bounds the pictures in memory

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
    on_bad_media: str = "error",
    num_samples: int = 1,
    seed: int | None = None,
    policy_of: PolicyOf | None = None,
    done: Collection[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[dict[int, dict]]:
    """`num_samples` completions per row, scored by the row's task; yields {index in `rows`: prediction} per batch.

    Which rows share a batch, and its random numbers, depend only on the rows and settings, not on `done`: a resumed run
    gives the same predictions.

    Args:
        engine: grows the completions; the caller chooses its sampling (greedy or not), eval mode and no_grad.
        module: the VLMModule that encodes a row.
        rows: dataset rows (columns `prompt` and `record`).
        batch_size: number of completions decoded together, from prompts of similar length. When memory runs out, the
            batch is halved.
        on_bad_media: "error" raises the MediaError, "skip" yields a prediction with status load_error.
        seed: for sampled completions; torch's default generator is then reseeded for each batch.
        policy_of: returns the policy for rows of a task with an environment (make_environment); called for each batch
            with the task and its records. The policy's trees have one leaf each, and its `report(tree, leaf)` gives
            further columns of the prediction. None: such rows are completed like all others.
        done: ids of rows to skip; they still keep their place in a batch.
        progress: called after each batch with its numbers of rows and of sampled tokens.

    A prediction: id, question_type, completion (end tokens removed), prediction (what parse_answer made of it,
    task's frame), answer (original frame), sol (task's frame), image_size and processed_size ((w, h) or None), format,
    accuracy (None: the task abstains), status (one of `evaluation.summary.STATUSES`), tokens (sampled), error (why
    there are no scores, else None), record; with `num_samples` above 1 also samples (see `scoring.scored`).
    """

    def agent(record: dict) -> str:
        task = tasks[record["question_type"]]
        return task.name if policy_of is not None and task.make_environment is not None else ""

    def make_policy(units: list[Unit]) -> Policy:
        record = units[0].record
        if agent(record):
            return policy_of(tasks[record["question_type"]], [unit.record for unit in units])
        return ChainPolicy(units[0].count, max_new_tokens)

    decoding = Lock()  # async rewards are scored in threads

    def decode(token_ids: list[int]) -> str:
        with decoding:
            return module.completion_texts([token_ids], engine.eos_ids)[0]

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
        # a batch has one kind of policy; within a kind, rows are sorted by length
        units.sort(key=lambda unit: (agent(unit.record), len(unit.prompt.ids)))
        for kind, members in groupby(units, key=lambda unit: agent(unit.record)):
            for batch in _chunks(members, size):
                if all(unit.record["id"] in done for unit in batch):
                    continue
                grown = grower.grow(_samples_as_units(batch, num_samples, apart=bool(kind)))
                samples = _joined(grown, num_samples) if kind else grown
                wanted = [pair for pair in zip(batch, samples, strict=True) if pair[0].record["id"] not in done]
                found = _predictions(tasks, wanted, decode)
                _report(progress, found)
                yield found


def _chunks(items: Iterable, size: int) -> Iterator[list]:
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


def _encode(module, window, on_bad_media: str) -> tuple[list[Unit], dict[int, dict]]:
    """The units of a window, and the predictions of records with unusable media."""
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
            raise UserError(f"record {record['id']!r}: {error}") from error
    return units, lost


def _samples_as_units(batch, num_samples: int, apart: bool) -> list[Unit]:
    """One unit per record for all its completions or, if each needs a separate tree, one per completion."""
    if apart:
        return [Unit(unit.place, unit.record, unit.prompt, first=i) for unit in batch for i in range(num_samples)]
    return [Unit(unit.place, unit.record, unit.prompt, count=num_samples) for unit in batch]


def _joined(grown: list, num_samples: int) -> list:
    """The completions of each record, None if one of them did not fit in memory."""
    return [None if None in part else [one for (one,) in part] for part in _chunks(grown, num_samples)]


def _predictions(tasks: dict[str, Task], pairs: list[tuple], decode) -> dict[int, dict]:
    """{place: prediction} of (unit, samples) pairs; those with an async reward are scored several at a time."""

    def predicted(pair):
        return _prediction(tasks, *pair, decode)

    def waits(pair) -> bool:
        return inspect.iscoroutinefunction(tasks[pair[0].record["question_type"]].accuracy_reward)

    slow = [pair for pair in pairs if waits(pair)]
    pairs = [pair for pair in pairs if not waits(pair)] + slow
    found = [predicted(pair) for pair in pairs[: len(pairs) - len(slow)]]
    if slow:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found += pool.map(predicted, slow)
    return {unit.place: prediction for (unit, _), prediction in zip(pairs, found, strict=True)}


def _prediction(tasks: dict[str, Task], unit: Unit, samples, decode) -> dict:
    if samples is None:
        length = len(unit.prompt.ids)
        return unscored(unit.record, "oom", f"a prompt of {length} tokens and its completion do not fit in memory")
    return scored(tasks[unit.record["question_type"]], unit.record, unit.prompt, samples, decode)


def _report(progress, found: dict[int, dict]) -> None:
    if progress is not None:
        progress(len(found), sum(item["tokens"] for item in found.values()))
