"""The Dockerfile without a container engine: what it copies exists, and its first layer can be installed."""

import re
import shutil
import subprocess
import sys

from packaging.version import Version
from paths import ROOT

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def first_copies() -> list[str]:
    """The sources copied before the requirements are installed."""
    before = TEXT[: TEXT.index("scripts/setup.sh --extras")]
    return [source for line in re.findall(r"^COPY (.+) \S+$", before, re.M) for source in line.split()]


def test_the_first_layer_has_all_that_the_installation_reads(tmp_path):
    for source in first_copies():
        given = ROOT / source
        if given.is_dir():
            shutil.copytree(given, tmp_path / source, dirs_exist_ok=True)
        else:
            place = tmp_path / (source if source.startswith("scripts") else given.name)
            place.parent.mkdir(exist_ok=True)
            shutil.copy(given, place)
    command = [sys.executable, "setup.py", "-q", "egg_info"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    needed = (tmp_path / "grpo_ma.egg-info" / "requires.txt").read_text()
    assert "trl" in needed
    extras = re.search(r"ARG EXTRAS=(\S+)", TEXT).group(1)
    assert all(f"[{extra}]" in needed for extra in extras.split(","))
    assert (tmp_path / "scripts" / "setup.sh").exists()


def test_the_image_has_the_cuda_of_the_torch_wheels():
    import torch

    image = Version(re.search(r"^FROM nvidia/cuda:([\d.]+)-devel", TEXT, re.M).group(1))
    built_for = torch.version.cuda
    if built_for is not None:  # a build for CPUs alone says nothing
        assert (image.major, image.minor) == Version(built_for).release[:2]


def test_the_image_has_every_folder_of_the_checkout():
    copied = {source.strip("/") for line in re.findall(r"^COPY (.+) \S+$", TEXT, re.M) for source in line.split()}
    folders = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert folders | {"scripts", "metadata", "tests", "docs", "train.py"} <= copied


def test_commands_name_files_of_the_checkout():
    for script in re.findall(r"scripts/\S+?\.sh", TEXT):
        assert (ROOT / script).exists(), script
