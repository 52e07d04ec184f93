"""The files of an evaluation, written so that a kill at any moment loses at most the batch being decoded.

Each process appends its predictions to parts/N.jsonl, one line each, as soon as they are scored. At the end the first
process merges all parts into predictions.jsonl, in the order of the data, and removes them. A rerun reads what is
there, drops an incomplete last line, and continues.
"""

import fcntl
import json
import os
import shutil
import weakref
from pathlib import Path

from task.errors import UserError
from trainer.evaluation.item_metrics import UNSCORED
from trainer.evaluation.summary import STATUSES

KEYS = {"id", "question_type", "status", "accuracy", "format", "tokens", "record", "answer"}  # what the metrics need


class PredictionFiles:
    """The output folder of one evaluation."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.merged, self.parts = folder / "predictions.jsonl", folder / "parts"

    def prepare(self, settings: dict, overwrite: bool) -> None:
        """Creates the folder and writes settings.json; refuses a folder with predictions of another evaluation.

        Raises:
            UserError: it cannot be created, another process evaluates into it, or its predictions are of another model,
                data or settings and `overwrite` is not set.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"--output_dir {self.folder} cannot be made ({error.strerror}): name another folder."
            ) from error
        self._claim()
        if overwrite:
            shutil.rmtree(self.parts, ignore_errors=True)
            self.merged.unlink(missing_ok=True)
        if self.merged.exists() or any(file.stat().st_size for file in self.parts.glob("*.jsonl")):
            self._refuse_another(settings)
        (self.folder / "metrics.json").unlink(missing_ok=True)
        write_json(self.folder / "settings.json", settings)

    def read(self) -> dict[str, dict]:
        """All predictions by id; of a record that was tried again, the last attempt counts.

        A line that a kill left incomplete is skipped. Every process may read while others append.
        """
        found = {}
        for file in (self.merged, *sorted(self.parts.glob("*.jsonl"))):
            for line in file.read_bytes().split(b"\n") if file.exists() else ():
                item = _prediction(line)
                if item is not None and (item["status"] not in UNSCORED or item["id"] not in found):
                    found[item["id"]] = item
        return found

    def append_to(self, process: int):
        """The part of a process, open for appending; an incomplete last line is removed."""
        self.parts.mkdir(exist_ok=True)
        file = self.parts / f"{process}.jsonl"
        if file.exists():
            whole = file.read_bytes().rfind(b"\n") + 1
            os.truncate(file, whole)
        # A record may contain a lone surrogate; backslashreplace writes it as the JSON escape that it came from.
        return file.open("a", encoding="utf-8", errors="backslashreplace", newline="\n")

    def merge(self, ids: list[str]) -> list[dict]:
        """Writes predictions.jsonl in the order of `ids`, removes the parts, and returns the predictions."""
        found = self.read()
        missing = [name for name in ids if name not in found]
        assert not missing, f"{len(missing)} records have no prediction, such as {missing[0]!r}"
        predictions = [found[name] for name in ids]
        fresh = self.merged.with_suffix(".new")
        with fresh.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
            out.writelines(map(line_of, predictions))
        os.replace(fresh, self.merged)
        shutil.rmtree(self.parts, ignore_errors=True)
        return predictions

    def _claim(self) -> None:
        """Locks the folder while this object lives: an evaluation without any line yet is not recognised otherwise."""
        lock = os.open(self.folder, os.O_RDONLY)
        weakref.finalize(self, os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"--output_dir {self.folder}: another eval.py is writing there; let it finish, or name another folder."
            ) from None
        except OSError:
            pass  # a file system without locks

    def _refuse_another(self, settings: dict) -> None:
        try:
            old = dict(json.loads((self.folder / "settings.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            old = {}
        if old.get("fingerprint") == settings["fingerprint"]:
            return
        unlike = ("fingerprint", "pass_threshold")
        other = sorted(k for k in settings if k in old and k not in unlike and old[k] != settings[k])
        what = f" (other {', '.join(other)})" if other else ""
        raise UserError(
            f"--output_dir {self.folder} holds predictions of another evaluation{what}: "
            "choose a new folder, or replace them with --overwrite."
        )


def line_of(prediction: dict) -> str:
    return json.dumps(prediction, ensure_ascii=False, default=_plain) + "\n"


def is_prediction(item) -> bool:
    """Whether a line's content is a valid prediction; False if damaged or written by a version with other columns."""
    if not isinstance(item, dict) or not item.keys() >= KEYS or item["status"] not in STATUSES:
        return False
    scores = (item["accuracy"], item["format"])
    return isinstance(item["id"], str) and all(x is None or isinstance(x, int | float) for x in scores)


def write_json(file: Path, value) -> None:
    """Writes the file atomically."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(value, indent=2, default=_plain) + "\n", encoding="utf-8")
    os.replace(fresh, file)


def _prediction(line: bytes) -> dict | None:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return item if is_prediction(item) else None


def _plain(value):
    # numpy scalars and arrays from a task's parser or metrics
    return value.tolist()
