"""Where a run writes and what it goes on from, checked before the model is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from transformers.integrations.integration_utils import get_available_reporting_integrations
from transformers.trainer_utils import get_last_checkpoint


def make_output(folder: str) -> None:
    """Makes the output folder. ValueError where that cannot be done or nothing can be written into it."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"output_dir {folder} cannot be made ({error.strerror}): name another folder") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"output_dir {folder} is read-only: name another folder")


def check_reporters(names: list[str]) -> None:
    """ValueError for a logging back end whose package is not installed."""
    installed = get_available_reporting_integrations()
    for name in names:
        if name not in installed:
            raise ValueError(
                f"report_to={name}: it is unknown or its package is not installed: install it, or use "
                f"{', '.join([*installed, 'none'])}"
            )


def checkpoint_to_resume(asked: str | bool | None, output_dir: str) -> str | None:
    """The checkpoint folder that `resume_from_checkpoint` names; "true" means the latest of `output_dir`."""
    word = str(asked).lower()
    if word in ("none", "false"):
        return None
    if word == "true":
        found = get_last_checkpoint(output_dir) if os.path.isdir(output_dir) else None
        if found is None:
            raise ValueError(f"resume_from_checkpoint=true, but {output_dir} holds no checkpoint-N: leave it out")
        return found
    if not (Path(asked) / "trainer_state.json").is_file():
        raise ValueError(
            f"resume_from_checkpoint={asked} is no checkpoint (it has no trainer_state.json): give a folder "
            "checkpoint-N of an earlier output_dir, or true for the latest of this one"
        )
    return str(asked)
