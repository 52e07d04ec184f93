"""The folder of an index beside its corpus: built once, by one process, and again when its inputs change."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from task.errors import UserError


def make_ready(folder: Path, made_of: dict, write: Callable[[Path], None]) -> None:
    """Calls write(new folder) unless `folder` was made of the same inputs; one process does, the others wait.

    made_of: JSON object that identifies every input and the file format. A reader that has mapped the old folder keeps
    it. Raises UserError if the folder cannot be written.
    """
    if _is_made_of(folder, made_of):
        return
    try:
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_made_of(folder, made_of):
                _replace(folder, made_of, write)
    except OSError as error:
        raise UserError(
            f"the index {folder} cannot be made ({error}): copy the corpus to a folder with room, and write access."
        ) from error


def _replace(folder: Path, made_of: dict, write: Callable[[Path], None]) -> None:
    new = Path(f"{folder}.{os.getpid()}")
    try:
        new.mkdir(exist_ok=True)
        write(new)
        (new / "made_of.json").write_text(json.dumps(made_of), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _is_made_of(folder: Path, made_of: dict) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / "made_of.json").read_text(encoding="utf-8")) == made_of
    return False
