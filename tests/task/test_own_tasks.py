"""A user's own folder of tasks: `--task_dir` and GRPO_MA_TASKS, and how its mistakes are named."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from paths import ROOT
from reward_cases import make_task, score

from task.errors import UserError
from task.own_tasks import VARIABLE
from task.rewards.record_check import check_record
from task.runners.judge import Judge
from task.task_loader import get_task, load_tasks
from trainer.evaluation.summary import summarise

TASK = """
import _words
TASK_CONFIG = {"task_type": "colours", "grpo_template": "{Question}"}

def format_reward(completion, sol, **kw):
    return 1.0

def accuracy_reward(completion, sol, **kw):
    return _words.same(completion, sol)
"""
HELPER = """
def same(completion, sol):
    return float(completion == sol["word"])
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a task and its helper, named by the environment."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "colours.py").write_text(TASK)
    (folder / "_words.py").write_text(HELPER)
    monkeypatch.setenv(VARIABLE, str(folder))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    sys.modules.pop("_words", None)


def test_own_tasks_are_added_to_the_shipped_ones(own):
    shipped = set(load_tasks(ROOT / "task"))
    tasks = load_tasks()
    assert set(tasks) == shipped | {"colours"}
    assert [name for name in tasks if tasks[name].is_own] == ["colours"]
    assert get_task("colours").accuracy_reward("red", {"word": "red"}) == 1.0


def test_a_task_type_that_is_taken_is_refused_by_both_files(own):
    taken = next(iter(load_tasks(ROOT / "task")))
    (own / "colours.py").write_text(TASK.replace('"colours"', repr(taken)))
    with pytest.raises(UserError, match=rf"own/colours\.py: task_type '{taken}' is already taken by .*task/"):
        load_tasks()


def test_a_folder_that_is_none_or_empty_is_named(tmp_path, monkeypatch):
    for name, sentence in (("absent", "absent is not a folder: --task_dir"), ("", "holds no task file")):
        monkeypatch.setenv(VARIABLE, str(tmp_path / name))
        with pytest.raises(UserError, match=sentence):
            load_tasks()


@pytest.mark.parametrize("answer", [{"colour": "red"}, "red"])
def test_an_error_in_a_reward_names_its_file_and_line_and_not_the_record_first(own, answer, capsys):
    task = load_tasks()["colours"]
    record = {"id": "r1", "question_type": "colours", "answer": answer}
    with pytest.raises(UserError) as caught:
        check_record(task, record, None, None)
    assert str(caught.value).startswith(f"{own / '_words.py'}:3: the rewards cannot score record 'r1' (")
    assert score(task, ["red"], record=[json.dumps(record)]) == [None]
    assert capsys.readouterr().err.startswith(f"{own / '_words.py'}:3: accuracy_reward failed on record 'r1'")


def test_a_file_that_cannot_be_imported_is_named_with_its_line(own):
    (own / "colours.py").write_text(TASK + "\nlimit = 1 / 0\n")
    with pytest.raises(UserError, match=r"own/colours\.py:11: the task file cannot be imported \(ZeroDivisionError"):
        load_tasks()


def test_numpys_bool_is_a_reward():
    task = make_task(accuracy=lambda completion, sol, **kw: np.bool_(completion == sol))
    assert score(task, ["yes", "no"]) == [1.0, 0.0]
    assert score(make_task(form=lambda completion, sol, **kw: np.bool_(True)), ["yes"], kind="format") == [1.0]


def test_a_metric_that_is_no_number_is_named():
    item = {"id": "a", "question_type": "words", "accuracy": 1.0, "format": 1.0, "status": "ok"}
    task = make_task(
        compute_metrics=lambda predictions, **kw: {"good": np.bool_(True), "none": None, "verdict": "fine"}
    )
    with pytest.raises(UserError, match=r"task/words\.py: compute_metrics gave 'fine' as 'verdict': a metric must"):
        summarise([item], {"words": task})


def test_a_verifier_of_the_own_folder_judges(own):
    (own / "_larger.py").write_text("WARM_UP = [(1, 2)]\n\ndef judge(a, b):\n    return a > b\n")
    judge = Judge("_larger")
    assert (judge.ask(2, 1).value, judge.ask(1, 2).value) == (True, False)


def test_a_command_takes_the_folder_as_a_flag(own, tmp_path):
    record = {"id": "r1", "question": "?", "question_type": "colours", "answer": {"word": "red"}}
    (tmp_path / "data.jsonl").write_text(json.dumps(record) + "\n")
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "scripts/data/check.py", str(tmp_path / "data.jsonl")]
    for flags, status in ((["--task_dir", str(own)], 0), ([], 1)):
        done = subprocess.run([*command, *flags], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
