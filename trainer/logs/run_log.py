"""`log.jsonl` in a run's output_dir: what Trainer.log reports to every back end, one line per log step.

    {"event": "start", "time", "max_steps", and every argument that differs from its default}
    {"step", "time", and the metrics}
    {"event": "end", "time"}

It is written as the run trains. trainer_state.json appears only with the first checkpoint or at the end of a run, too
late for scripts/watch.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from pathlib import Path

from transformers import TrainerCallback

FILE_NAME = "log.jsonl"


class RunLog(TrainerCallback):
    """Writes log.jsonl on the first process. A resumed run appends to it; a full disk is reported once."""

    def __init__(self):
        self.file: Path | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        if not state.is_world_process_zero:
            return
        self.file = Path(args.output_dir) / FILE_NAME
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            whole = self.file.read_bytes() if state.global_step and self.file.exists() else b""
            self.file.write_bytes(whole[: whole.rfind(b"\n") + 1])  # without an incomplete last line
        except OSError as error:
            self._give_up(error)
        self._write({"event": "start", "max_steps": state.max_steps, **changed_arguments(args)})

    def on_log(self, args, state, control, logs=None, **kwargs):
        self._write({"step": state.global_step, **(logs or {})})

    def on_train_end(self, args, state, control, **kwargs):
        self._write({"event": "end"})

    def _write(self, entry: dict) -> None:
        if self.file is None:
            return
        entry = {name: _plain(value) for name, value in entry.items()} | {"time": round(time.time(), 2)}
        try:
            with self.file.open("a", encoding="utf-8", newline="\n") as out:
                out.write(json.dumps(entry) + "\n")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        print(f"{self.file} cannot be written ({error.strerror}): scripts/watch.py will not see it", file=sys.stderr)
        self.file = None


def changed_arguments(args) -> dict:
    """The training arguments that differ from their defaults, as `to_dict` shows them (tokens hidden)."""
    shown, changed = args.to_dict(), {}
    for field in dataclasses.fields(args):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.name in shown and getattr(args, field.name) != default:
            changed[field.name] = shown[field.name]
    return changed


def _plain(value):
    """The value in JSON types: NaN and infinity become None, unknown types become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    try:
        return _plain(float(value))  # a number of numpy or torch
    except (TypeError, ValueError):
        return str(value)
