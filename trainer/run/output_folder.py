"""What an output folder holds already: checkpoints, and results of another run that a new one would overwrite."""

from __future__ import annotations

import json
from pathlib import Path

from task.errors import UserError
from trainer.logs.run_log import FILE_NAME as LOG
from trainer.logs.tree_log import FILE_NAME as TREES

WEIGHTS = ("adapter_model.*", "model.safetensors*", "model-*.safetensors", "pytorch_model*.bin*")
STATE = "trainer_state.json"
SETTINGS = ("adapter_config.json", "config.json", STATE, "training_args.bin")
ASIDE = "earlier"


def results_in(folder: str | Path) -> list[str]:
    """Names of what a run left in a folder: a log with a step, trees, weights, checkpoints; [] if there is nothing.

    The log of a run that failed before its first step does not count: nothing is lost with it.
    """
    folder = Path(folder)
    logs = [LOG] if _has_a_step(folder / LOG) else []
    logs += [TREES] if (folder / TREES).is_file() and (folder / TREES).stat().st_size else []
    weights = sorted(path.name for pattern in WEIGHTS for path in folder.glob(pattern))
    return logs + weights + sorted(path.name for path in folder.glob("checkpoint-*") if missing(path) is None)


def check_unused(folder: str | Path, way_out: str) -> None:
    """UserError if a folder holds the results of another run; `way_out` ends the sentence."""
    found = results_in(folder)
    if found:
        shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        raise UserError(
            f"output_dir {folder} holds another run ({shown}), which a run from step 0 would overwrite: {way_out}"
        )


def set_aside(folder: str | Path) -> Path | None:
    """Moves the logs and the final weights of an earlier run into a new folder earlier-N; None if there are none.

    Checkpoints stay where they are.
    """
    folder = Path(folder)
    if not results_in(folder):
        return None
    number = 1
    while (aside := folder / f"{ASIDE}-{number}").exists():
        number += 1
    aside.mkdir()
    for pattern in (LOG, TREES, *WEIGHTS, *SETTINGS):
        for path in folder.glob(pattern):
            path.rename(aside / path.name)
    return aside


def _has_a_step(log: Path) -> bool:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any('"step"' in line and _step_of(line) for line in lines)


def _step_of(line: str) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:  # cut off
        return False
    return isinstance(entry, dict) and bool(entry.get("step"))


def missing(checkpoint: Path) -> str | None:
    """What a checkpoint folder lacks, in words, or None; the trainer writes its state last."""
    try:
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it has no {STATE}"
    except (OSError, ValueError):
        return f"its {STATE} is cut off"
    weights = [path for ending in ("safetensors", "bin") for path in checkpoint.glob(f"*model*.{ending}")]
    empty = next((path.name for path in weights if path.stat().st_size == 0), None)
    if empty:
        return f"its {empty} is empty"
    sharded = any(checkpoint.glob("global_step*"))  # DeepSpeed's own form
    return None if weights or sharded else "it has no weights"
