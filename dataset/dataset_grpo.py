"""YAML manifests -> rows for training and evaluation.

A row has two text columns: `prompt`, the rendered question for logs, and `record`, everything else as one JSON string.
It is JSON because Arrow would give every content part the keys of all others, and rejects answers of mixed types.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import datasets

from dataset.manifest import Source, read_manifests, sample
from dataset.media import VIDEO_FPS, VIDEO_MAX_FRAMES, MediaError, load_image, load_video
from dataset.prompts import build_messages, render_question
from dataset.records import parse_record, read_records
from task.errors import UserError
from task.rewards.given_answer import given_answer
from task.task_loader import get_task

COLUMNS = datasets.Features({"prompt": datasets.Value("string"), "record": datasets.Value("string")})


def build_dataset(
    manifests,
    tasks: dict,
    *,
    seed: int = 42,
    image_root: str | None = None,
    on_bad_media: str = "error",
) -> datasets.Dataset:
    """All rows of one or several manifests, in order (the trainer shuffles).

    Args:
        manifests: path, or list of paths, of YAML manifests or record files (see dataset/manifest.py).
        tasks: question_type -> Task, as `task.task_loader.load_tasks` gives it; the templates' <think> tags become
            those of its `thought_end`.
        seed: for `random:N` sampling.
        image_root: replaces every data_root.
        on_bad_media: with "error" a missing media file stops the loading; with "skip" its row is kept, and `load_media`
            raises for it as for any other unusable file.

    Raises:
        UserError: one sentence for the first fault in a manifest, a record or a media path; media are not decoded yet.
    """
    return _as_dataset(load_records(manifests, seed, image_root, on_bad_media), tasks)


def rows_from_records(
    records: list[dict],
    tasks: dict,
    *,
    image_root: str | None = None,
    on_bad_media: str = "error",
) -> datasets.Dataset:
    """`build_dataset` for records in memory; media paths are relative to `image_root` or the working folder.

    >>> from types import SimpleNamespace
    >>> tasks = {"sum": SimpleNamespace(config={"grpo_template": "{Question} Answer."}, thought_end="</think>")}
    >>> rows_from_records([{"question": "2+2?", "answer": 4, "question_type": "sum"}], tasks)[0]["prompt"]
    '2+2? Answer.'
    """
    raws = [(f"record {index}", f"record:{index}", raw) for index, raw in enumerate(records)]
    checks = {"data_root": Path(image_root or "."), "on_bad_media": on_bad_media}
    return _as_dataset(_parse(raws, checks, {}, _stop), tasks)


def read_row(row: dict) -> dict:
    """The record of a dataset row: id, question_type, question, answer, images, videos, messages, extra."""
    return json.loads(row["record"])


def first_records(*parts: datasets.Dataset | None) -> dict[str, dict]:
    """The first record of each question_type in the datasets, in order of appearance; None means no dataset."""
    found: dict[str, dict] = {}
    for text in (text for part in parts if part is not None for text in part["record"]):
        record = json.loads(text)
        found.setdefault(record["question_type"], record)
    return found


def load_media(record: dict, *, fps: float = VIDEO_FPS, max_frames: int = VIDEO_MAX_FRAMES) -> tuple[list, list]:
    """(images, videos) of one record, decoded: RGB pictures, and lists of frames with their rate (`Video`).

    Args:
        record: what `read_row` gives.
        fps, max_frames: how videos are sampled (see `load_video`).

    Raises:
        MediaError: names record id and file; the caller decides whether to stop the run or skip the row.
    """
    try:
        images = [load_image(path) for path in record["images"]]
        videos = [load_video(path, fps=fps, max_frames=max_frames) for path in record["videos"]]
    except MediaError as error:
        raise MediaError(f"record {record['id']!r}: {error}") from error
    return images, videos


def _stop(problem: str) -> None:
    raise UserError(problem)


def load_records(
    manifests,
    seed: int = 42,
    image_root: str | None = None,
    on_bad_media: str = "error",
    on_problem: Callable[[str], None] = _stop,
) -> list[dict]:
    """The checked records of manifests (see `parse_record`), each with `place`: its file and line, for messages.

    Args:
        on_problem: called with one sentence for each faulty record, which is then left out; by default it raises
            UserError. Faults of the manifest itself always raise.
    """
    sources = read_manifests(manifests, image_root)
    names = _file_names(sources)
    seen: dict[str, str] = {}
    records = []
    for source in sources:
        raws = read_records(source.path, names[source.path], on_problem)
        try:
            raws = sample(raws, source.strategy, source.place, f"{seed}:{names[source.path]}")
        except UserError as error:
            on_problem(str(error))
        checks = {"data_root": source.data_root, "modality": source.modality, "on_bad_media": on_bad_media}
        records += _parse(raws, checks, seen, on_problem)
    return records


def make_row(record: dict, tasks: dict) -> dict:
    """The dataset row of a checked record; answers in JSON text are parsed if the task expects that (`given_answer`).

    Raises UserError for an unknown question_type, and for slots in the question that do not match the media.
    """
    try:
        task = get_task(record["question_type"], tasks)
        messages = build_messages(record, task)
    except UserError as error:
        raise UserError(f"{record['place']} (id {record['id']!r}): {error}") from error
    content = {key: value for key, value in record.items() if key != "place"} | {"messages": messages}
    content["answer"] = given_answer(task, record["answer"])
    return {"prompt": render_question(task, record["question"]), "record": json.dumps(content)}


def _parse(raws: list, checks: dict, seen: dict[str, str], on_problem) -> list[dict]:
    records = []
    for place, default_id, raw in raws:
        try:
            record = parse_record(raw, place, default_id, **checks)
            # Rollouts are grouped by id, so two prompts with the same id would be compared with each other.
            if seen.get(record["id"]) == place:
                raise UserError(
                    f"{place} (id {record['id']!r}): the manifests take this record twice: name its file once, or give "
                    "the entries parts that do not overlap."
                )
            if record["id"] in seen:
                raise UserError(
                    f"{place}: the id {record['id']!r} is taken by {seen[record['id']]}: every record of a run needs "
                    "its own; change it, or leave `id` out to have one made from file name and line."
                )
        except UserError as error:
            on_problem(str(error))
            continue
        seen[record["id"]] = place
        records.append(record | {"place": place})
    return records


def _file_names(sources: list[Source]) -> dict[Path, str]:
    """File -> name in record ids: its stem, with as many parent folders as distinguish it from the other files."""
    paths = {source.path for source in sources}

    def name(path: Path, folders: int) -> str:
        return "/".join((*path.parts[-1 - folders : -1], path.stem))

    def is_alone(path: Path, folders: int) -> bool:
        return sum(name(other, folders) == name(path, folders) for other in paths) == 1

    # Two files may differ only in their suffix, .json and .jsonl.
    depths = {path: next((n for n in range(len(path.parts)) if is_alone(path, n)), None) for path in paths}
    return {path: path.name if depth is None else name(path, depth) for path, depth in depths.items()}


def _as_dataset(records: list[dict], tasks: dict) -> datasets.Dataset:
    if not records:
        raise UserError("there are no records: give at least one.")
    return datasets.Dataset.from_list([make_row(record, tasks) for record in records], features=COLUMNS)
