"""Shell scripts started wrongly: status 2 and a sentence, before anything is set up."""

import os
import subprocess

import pytest
from paths import ROOT

SCRIPTS = ROOT / "scripts"


@pytest.mark.parametrize(
    ("script", "arguments", "variables", "sentence"),
    [
        ("eval/run_eval_trajectory.sh", [], {"PYTHON": "/no/python"}, "found no Python (/no/python)"),
        ("run_grpo_lora.sh", ["--dry-run"], {"PYTHON": "/no/python"}, "found no Python (/no/python)"),
        ("quickstart.sh", ["--output_dir", "FILE/x"], {}, "cannot be created: name a writable folder"),
        ("quickstart.sh", ["--active"], {"PYTHON": "/no/python"}, "--active: no python on PATH"),
    ],
)
def test_a_wrong_start_is_a_sentence(tmp_path, script, arguments, variables, sentence):
    (tmp_path / "file").write_text("")
    words = [word.replace("FILE", str(tmp_path / "file")) for word in arguments]
    done = subprocess.run(
        ["bash", str(SCRIPTS / script), *words], env=os.environ | variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr and len(done.stderr.strip().splitlines()) == 1
