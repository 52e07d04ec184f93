"""The command grpo-ma starts the scripts of its checkout, also where another project has packages of the same names."""

import json
import os
import subprocess
import sys

import pytest
from paths import ROOT

from task.command.main import COMMANDS, main


def test_every_command_is_a_script_and_is_listed(capsys):
    main([])
    listed = capsys.readouterr().out
    for name, (script, _) in COMMANDS.items():
        assert (ROOT / script).is_file() and f"  {name} " in listed


def test_a_command_becomes_its_script_with_its_arguments(monkeypatch):
    started = []
    monkeypatch.setattr(os, "execv", lambda *command: started.append(command))
    main(["compare", "a", "--json"])
    assert started == [(sys.executable, [sys.executable, str(ROOT / "scripts/eval/compare.py"), "a", "--json"])]


@pytest.mark.parametrize(
    ("name", "words"), [("reprot", "did you mean report?"), ("xyz", "it has train, sft, eval, compare, report")]
)
def test_an_unknown_command_is_a_sentence(capsys, name, words):
    with pytest.raises(SystemExit) as stop:
        main([name])
    assert stop.value.code == 2 and f"grpo-ma: there is no command {name!r}" in (said := capsys.readouterr().err)
    assert words in said


def test_outside_a_checkout_it_says_how_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("task.command.main.ROOT", tmp_path)
    with pytest.raises(SystemExit):
        main(["train"])
    assert f"{tmp_path} has no train.py: the commands are those of a checkout" in capsys.readouterr().err


@pytest.fixture
def foreign(tmp_path):
    """Runs Python where another project's `config` comes first."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "__init__.py").write_text("")

    def call(*arguments):
        environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    return call


@pytest.mark.parametrize("package", ["trainer", "model", "dataset"])
def test_a_package_of_another_project_is_named_with_its_place(foreign, tmp_path, package):
    done = foreign("-c", f"import {package}")
    wanted = f"ImportError: `import config` finds {tmp_path / 'config'}, but GRPO-MA needs {ROOT / 'config'}"
    assert wanted in done.stderr.splitlines()[-1]


def test_the_command_works_beside_a_package_of_another_project(foreign, tmp_path):
    (tmp_path / "own.jsonl").write_text(json.dumps({"question": "q?", "answer": "a", "question_type": "ocr-vqa"}))
    done = foreign("-m", "task.command.main", "check", "own.jsonl")
    assert done.returncode == 0, done.stderr
    assert "problems                                         0" in done.stdout
