"""Folders of the user's own task files, outside the package: `--task_dir DIR` of every command, or GRPO_MA_TASKS.

The environment variable reaches every process that a command starts, the workers that judge answers among them.
"""

import argparse
import os
import sys
from pathlib import Path

from task.errors import UserError

VARIABLE = "GRPO_MA_TASKS"  # folders, separated as in PATH


def own_folders() -> list[Path]:
    """The folders that GRPO_MA_TASKS names, on sys.path so that task files can import their helpers `_*.py`.

    Raises:
        UserError: one of them is not a folder.
    """
    folders = [Path(name).resolve() for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: --task_dir (or {VARIABLE}) names a folder of task files.")
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return folders


def use_task_dir(folder: str | None) -> None:
    """Makes a folder the one of the user's own tasks in this process and in those that it starts; None: no change."""
    if folder is not None:
        os.environ[VARIABLE] = str(Path(folder).resolve())


def add_task_dir(parser: argparse.ArgumentParser) -> None:
    """Adds `--task_dir`, which takes effect when the arguments are parsed."""
    parser.add_argument(
        "--task_dir", action=_UseTaskDir, metavar="DIR", help=f"folder of your own task files (default: ${VARIABLE})"
    )


class _UseTaskDir(argparse.Action):
    def __call__(self, parser, namespace, folder, option_string=None):
        use_task_dir(folder)
        setattr(namespace, self.dest, folder)
