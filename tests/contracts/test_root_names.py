"""The names at the repository's root are fixed: what users and scripts link to does not move."""

import os
import subprocess

import pytest
from paths import ROOT

FOLDERS = {"config", "dataset", "model", "task", "trainer", "scripts", "metadata", "tests", "docs", ".ci"}
FILES = {
    "train.py",
    "setup.py",
    "requirements.txt",
    "pyproject.toml",
    "README.md",
    "NOTICE",
    "LICENSE",
    "Dockerfile",
    "Makefile",
    ".gitignore",
}


def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout (an unpacked archive)")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [name for name in listing.stdout.decode().split("\0") if name]


def test_root_holds_exactly_the_fixed_names():
    roots = {name.split("/")[0] for name in tracked_files()}
    assert roots == FOLDERS | FILES


def test_shell_entry_points_are_executable_and_start_bash():
    sourced = {"scripts/launch.sh"}  # by two entry points, whose bash line and settings it has
    entries = [name for name in tracked_files() if name.endswith(".sh") and name not in sourced] + [".ci/run"]
    assert {"scripts/setup.sh", "scripts/test.sh", "scripts/quickstart.sh", "scripts/run_grpo_lora.sh"} <= set(entries)
    for name in entries:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert os.access(ROOT / name, os.X_OK), f"{name} is not executable"
        assert text.startswith("#!/usr/bin/env bash\n"), f"{name} has no bash line"
        assert "\nset -euo pipefail\n" in text, f"{name} goes on after an error"


def test_no_tracked_file_is_machine_made():
    made = [n for n in tracked_files() if n.endswith((".pyc", ".log")) or n.startswith(("runs/", "wandb/", ".venv/"))]
    assert made == []
