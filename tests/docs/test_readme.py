"""The README is short, its pictures exist, its numbers are those of the picture, and its installation can be typed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_it_has_at_most_200_lines():
    assert len(TEXT.splitlines()) <= 200


def test_the_picture_of_the_tree_comes_before_the_first_section():
    assert "](docs/tree.svg)" in TEXT.partition("\n## ")[0]


def test_the_picture_of_the_report_is_small():
    assert "](docs/report.png)" in section("Evaluation")
    assert (ROOT / "docs" / "report.png").stat().st_size < 200_000


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_the_token_counts_are_those_of_the_picture(page):
    title = re.search("<title>(.*)</title>", (ROOT / "docs" / "tree.svg").read_text(encoding="utf-8")).group(1)
    tree, rows = re.findall(r"([\d,]+) tokens", title)
    text = re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
    assert tree in text and rows in text


def test_the_headline_is_the_row_of_the_whole_step():
    table = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    (ratio,) = re.findall(r"^\| whole step:.*\| ([\d.]+) times faster \|$", table, re.MULTILINE)
    (memory,) = re.findall(r"^\| its peak memory \|.*\| ([\d.]+) of TRL's \|$", table, re.MULTILINE)
    headline = TEXT.partition("\n## ")[0]
    assert f"**{ratio} times faster**" in headline and f"**{memory} of the peak memory**" in headline
    assert "one CPU thread" in headline and "GPU has not been measured" in headline.replace("\n", " ")


def test_conda_makes_a_python_that_setup_py_accepts():
    wanted = re.search(r"python_requires=\">=([\d.]+)\"", (ROOT / "setup.py").read_text(encoding="utf-8")).group(1)
    made = re.search(r"^conda create -n \S+ python=([\d.]+) -y", section("Installation"), re.MULTILINE).group(1)
    assert [int(part) for part in made.split(".")] >= [int(part) for part in wanted.split(".")]
    assert "pip install -r requirements.txt" in section("Installation")


def test_the_download_is_a_command_of_the_installed_hub():
    command = re.search(r"^(hf download .*)$", section("Installation"), re.MULTILINE).group(1).split()
    program = Path(sys.executable).parent / command[0]
    if not program.exists() and shutil.which(command[0]) is None:
        pytest.skip("the hub's command line is not installed")
    found = str(program) if program.exists() else command[0]
    done = subprocess.run([found, command[1], "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for flag in (word for word in command if word.startswith("--")):
        assert flag in done.stdout
    assert f"MODEL_PATH={command[-1]} " in section("Training on a GPU node")
