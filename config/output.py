"""Where a run writes and what it resumes from, checked before the model is loaded."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from transformers.integrations.integration_utils import get_available_reporting_integrations

from task.errors import UserError
from trainer.run.output_folder import STATE, check_unused, missing, set_aside

# Checkpoint files that only a resumed run needs.
RESUMING = (
    "optimizer", "scheduler", "scaler", "rng_state", "layout", "method_memory", "latest", "zero_to_",
    "pytorch_model_fsdp",
)  # fmt: skip


def check_output(folder: str) -> None:
    """UserError if the output folder could not be created or is read-only; nothing is created yet."""
    path = Path(folder).absolute()
    existing = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not existing.is_dir():
        raise UserError(f"output_dir {folder} cannot be created ({existing} is a file): name another folder")
    if not os.access(existing, os.W_OK):
        raise UserError(f"output_dir {folder} cannot be written ({existing} is read-only): name another folder")


def make_output(folder: str) -> None:
    """Creates the output folder. UserError if that fails or the folder is read-only."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output_dir {folder} cannot be created ({error.strerror}): name another folder") from error
    if not os.access(folder, os.W_OK):
        raise UserError(f"output_dir {folder} is read-only: name another folder")


def check_reporters(names: list[str]) -> None:
    """UserError for a logging back end whose package is not installed, and for wandb without an account."""
    installed = get_available_reporting_integrations()
    for name in names:
        if name not in installed:
            raise UserError(
                f"report_to={name}: it is unknown or its package is not installed: install it, or use "
                f"{', '.join([*installed, 'none'])}"
            )
    if "wandb" in names and os.environ.get("WANDB_MODE") not in ("offline", "dryrun", "disabled"):
        import wandb

        if not wandb.login(prompt=False):
            raise UserError("report_to=wandb: no account is logged in: run `wandb login`, or set WANDB_MODE=offline")


def checkpoint_to_resume(asked: str | bool | None, output_dir: str) -> str | None:
    """The checkpoint folder that `resume_from_checkpoint` names.

    "true" means the latest complete checkpoint of `output_dir`; later ones that are incomplete are reported on stderr.
    "auto" means the same, but gives None if there is none.

    Raises:
        UserError: there is none, or the folder named is not a complete checkpoint.
    """
    word = str(asked).lower()
    if word in ("none", "false"):
        return None
    if word not in ("true", "auto"):
        fault = missing(Path(asked))
        if fault:
            raise UserError(
                f"resume_from_checkpoint={asked} is not a checkpoint ({fault}): give a folder checkpoint-N of an "
                "earlier output_dir, or auto for the latest of this one"
            )
        return str(asked)
    for folder in _newest_first(output_dir):
        fault = missing(folder)
        if fault is None:
            return str(folder)
        print(f"{folder} is incomplete ({fault}): looking for an earlier checkpoint", file=sys.stderr)
    for folder in Path(output_dir).glob(".incomplete/checkpoint-*"):
        print(f"{folder} is incomplete", file=sys.stderr)
    if word == "auto":
        return None
    raise UserError(f"resume_from_checkpoint=true, but {output_dir} holds no complete checkpoint-N: leave it out")


def check_no_later(output_dir: str, checkpoint: str | None, weights_only: bool = False) -> None:
    """UserError if a run would overwrite a complete checkpoint, one of a later step than the run starts from.

    `checkpoint`: what the run resumes from, or with `weights_only` takes its weights from; None: it starts at step 0.
    """
    step = _state(checkpoint)["global_step"] if checkpoint and not weights_only else 0
    found = next((folder for folder in _newest_first(output_dir) if missing(folder) is None), None)
    if found is not None and _step(found) > step:
        asked = f" with --resume {checkpoint} --resume_weights_only true" if checkpoint and weights_only else ""
        raise UserError(
            f"{output_dir} holds {found.name}, which a run from step {step} would overwrite: resume from it "
            f"(--resume_from_checkpoint auto), or name another output_dir{asked}"
        )


def begin_in(output_dir: str, checkpoint: str | None, asked: str | bool | None) -> None:
    """Makes sure that a run does not mix its results with those of another run in `output_dir`.

    Called by the first process. A run that goes on from a checkpoint of `output_dir` continues what is there. With
    "auto" and no checkpoint, as for a requeued job, the results that are there are set aside, which is reported.

    Args:
        checkpoint: what the run resumes from; None: it starts at step 0.
        asked: `resume_from_checkpoint`.

    Raises:
        UserError: the folder holds another run.
    """
    here = Path(output_dir).resolve()
    if checkpoint and here in (Path(checkpoint).resolve(), Path(checkpoint).resolve().parent):
        return
    if str(asked).lower() == "auto" and checkpoint is None:
        aside = set_aside(here)
        if aside is not None:
            print(f"{output_dir} has no complete checkpoint: the run starts anew, earlier results are in {aside}")
        return
    check_unused(
        output_dir,
        "name another output_dir, remove the folder, or start anew there with --resume_from_checkpoint auto, which "
        "sets these files aside",
    )


def steps_left(checkpoint: str, max_steps: int, num_train_epochs: float) -> bool:
    """Whether a run that resumes from a checkpoint has a step left to train; transformers trains one in any case."""
    state = _state(checkpoint)
    if max_steps > 0:
        return state["global_step"] < max_steps
    return state["epoch"] < num_train_epochs - 1e-9  # a last step may go past a fraction, and rounding just below it


def already_through(checkpoint: str, args) -> None:
    """Finishes a run whose last checkpoint is at its last step: writes the final files and prints a message."""
    make_output(args.output_dir)
    if args.process_index == 0:
        finish(checkpoint, args.output_dir, best=args.load_best_model_at_end)
        longer = "max_steps" if args.max_steps > 0 else "num_train_epochs"
        print(f"{checkpoint} is the end of the run, saved to {args.output_dir}: raise {longer} to train on")


def finish(checkpoint: str, output_dir: str, best: bool) -> None:
    """Copies the weights, the processor and the state of a run's last checkpoint to where the end of the run puts them.

    `best`: the weights are those of the best checkpoint, where the state names one (load_best_model_at_end).
    """
    last = chosen = Path(checkpoint)
    if last.samefile(output_dir):
        return
    if best and (named := _state(last)["best_model_checkpoint"]):
        chosen = last.with_name(Path(named).name)  # the whole run may have been moved
    for path in chosen.iterdir():
        if path.is_file() and not path.name.startswith(RESUMING):
            shutil.copy2(path, output_dir)
    shutil.copy2(last / STATE, output_dir)


def _newest_first(output_dir: str) -> list[Path]:
    """The folders checkpoint-N, complete or not."""
    folders = [path for path in Path(output_dir).glob("checkpoint-*") if path.name.split("-", 1)[1].isdecimal()]
    return sorted(folders, key=_step, reverse=True)


def _step(folder: Path) -> int:
    return int(folder.name.split("-", 1)[1])


def _state(checkpoint: str | Path) -> dict:
    return json.loads((Path(checkpoint) / STATE).read_text(encoding="utf-8"))
