"""Finds training runs and evaluations in the folders that a user names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from task.errors import UserError

RUN_FILES = ("log.jsonl", "trees.jsonl", "trainer_state.json", "checkpoints.json")
EVALUATION_FILES = ("predictions.jsonl", "metrics.json", "parts/0.jsonl")  # parts exist while it runs
DEEPEST = 2  # levels of subfolders searched: RUN/eval/checkpoint-100


@dataclass(frozen=True)
class Source:
    """A folder to show.

    Attributes:
        name: its name on the page, unique there.
        folder: where its files are.
        is_run, is_evaluation: what it contains; a folder may contain both.
    """

    name: str
    folder: Path
    is_run: bool
    is_evaluation: bool


def find_sources(folders: list[Path], may_be_empty: bool = False) -> list[Source]:
    """The runs and evaluations in the folders and up to two levels below; within a folder, oldest first.

    Args:
        may_be_empty: an existing folder without anything to show counts as a run that has not logged yet.

    Raises:
        UserError: a folder does not exist, or has nothing to show.
    """
    found: list[tuple[str, Path]] = []
    for folder in folders:
        folder = Path(folder)
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: name the output_dir of a training run or an evaluation.")
        name = folder.resolve().name or "run"
        inside = [(name if where == folder else _below(name, where, folder), where) for where in _search(folder, 0)]
        if not inside and not may_be_empty:
            raise UserError(
                f"{folder} has nothing to show (none of {', '.join(RUN_FILES + EVALUATION_FILES)}): name the "
                "output_dir of a training run that has logged, or of an evaluation."
            )
        found += inside or [(name, folder)]
    sources, names = [], set()
    for name, folder in found:
        unique, number = name, 1
        while unique in names:
            number += 1
            unique = f"{name} ({number})"
        names.add(unique)
        evaluation = _holds(folder, EVALUATION_FILES)
        sources.append(Source(unique, folder, _is_run(folder) or not evaluation, evaluation))
    return sources


def prediction_files(folder: Path) -> list[Path]:
    """Files with the predictions of an evaluation: the merged file, and the parts of running processes."""
    return [file for file in (folder / "predictions.jsonl", *sorted(folder.glob("parts/*.jsonl"))) if file.is_file()]


def watched_files(source: Source) -> list[Path]:
    """All files that the page of a source depends on."""
    states = sorted(source.folder.glob("checkpoint-*/trainer_state.json"))
    return [*(source.folder / name for name in RUN_FILES + EVALUATION_FILES), *prediction_files(source.folder), *states]


def _search(folder: Path, depth: int) -> list[Path]:
    here = [folder] if _is_run(folder) or _holds(folder, EVALUATION_FILES) else []
    if depth == DEEPEST:
        return here
    children = sorted((path for path in folder.iterdir() if path.is_dir()), key=_age)
    # a run's checkpoint is part of the run unless it contains an evaluation
    inside = [p for p in children if not p.name.startswith("checkpoint-") or _holds(p, EVALUATION_FILES)]
    return here + [found for path in inside for found in _search(path, depth + 1)]


def _is_run(folder: Path) -> bool:
    return _holds(folder, RUN_FILES) or any(folder.glob("checkpoint-*/trainer_state.json"))


def _holds(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / name).is_file() for name in names)


def _below(name: str, where: Path, folder: Path) -> str:
    return f"{name}/{where.relative_to(folder).as_posix()}"


def _age(path: Path) -> tuple:
    """Sort key: by age of the oldest file, then by name, with checkpoint-100 before checkpoint-1000."""
    files = [path / name for name in (*EVALUATION_FILES, *RUN_FILES) if (path / name).is_file()]
    head, _, number = path.name.rpartition("-")
    step = int(number) if number.isdecimal() and number.isascii() else 0
    return (min((int(file.stat().st_mtime) for file in files), default=0), head if step else path.name, step)
