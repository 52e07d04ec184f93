"""docs/tutorial.md, word for word, in a copy of the checkout: its commands work, and the warm start writes the form."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
from paths import ROOT

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FOLDERS = ("task", "dataset", "model", "trainer", "config", "scripts")


@pytest.fixture
def checkout(tmp_path):
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in {"python": "", "grpo-ma": "-m task.command.main "}.items():
        (programs / name).write_text(f'#!/bin/bash\nexec {sys.executable} {words}"$@"\n')
        (programs / name).chmod(0o755)
    return tmp_path


@pytest.mark.slow
def test_the_tutorial_goes_from_pictures_to_a_report(checkout, record_property):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("GRPO_MA_TASKS", None)
    commands = [block.strip() for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S)]
    assert len(commands) == 6
    printed, started = [], time.monotonic()
    for block in commands:
        done = subprocess.run(
            ["bash", "-ec", block], cwd=checkout, env=environment, capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed.append(done.stdout)
    record_property("tutorial_seconds", round(time.monotonic() - started))
    print(f"the tutorial took {time.monotonic() - started:.0f} s")

    shown = re.search(r"```\n(picture,.*?)```", PAGE, re.S)[1].splitlines()
    assert (checkout / "my_data" / "labels.csv").read_text().splitlines()[:2] == shown
    before, after = (
        json.loads((checkout / "runs" / "tutorial" / name / "metrics.json").read_text()) for name in ("before", "after")
    )
    assert before["metrics"]["sign-colour"]["format"] > 0.9
    assert before["counts"]["items"] == after["counts"]["items"] > 4
    page = (checkout / "runs" / "tutorial" / "report.html").read_text()
    assert "sign-colour" in page and "Which colour is the sign?" in page
    assert "dry run: names, types and the method's rules hold" in printed[4]
    assert "format" in printed[5]
