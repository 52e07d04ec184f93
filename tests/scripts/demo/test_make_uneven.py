"""Demo data of which a part is too easy and a part too hard, and the task that reads its tolerances."""

import json
import subprocess
import sys

import pytest
from paths import ROOT

from dataset.dataset_grpo import build_dataset
from task.rewards.self_test import check_rewards
from task.task_loader import load_tasks

SCRIPT, TASKS = ROOT / "scripts/demo/make_uneven.py", ROOT / "scripts/lab/tasks"


def make(folder, *flags):
    return subprocess.run([sys.executable, SCRIPT, "--out", folder, *flags], text=True, capture_output=True)


def test_shares_are_exact_and_records_are_read_as_in_training(tmp_path):
    done = make(tmp_path / "uneven")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "uneven/train.jsonl").read_text().splitlines()]
    tolerances = [record["tolerance"] for record in records]
    assert len(records) == 512
    assert [round(tolerances.count(one) / 512, 3) for one in (2.0, 0.0001, 0.1)] == [0.301, 0.301, 0.398]
    rows = build_dataset([str(tmp_path / "uneven/train.yaml")], load_tasks(TASKS))
    assert json.loads(rows[0]["record"])["extra"]["tolerance"] == tolerances[0]
    again = make(tmp_path / "again", "--seed", "1")
    assert again.returncode == 0
    assert (tmp_path / "again/train.jsonl").read_text() == (tmp_path / "uneven/train.jsonl").read_text()


def test_shares_above_one_are_refused(tmp_path):
    done = make(tmp_path, "--easy", "0.7", "--hard", "0.4")
    assert done.returncode == 2
    assert "must be shares that add up to at most 1" in done.stderr


@pytest.mark.parametrize(("tolerance", "right"), [(0.2, 1.0), (0.0001, 0.0)])
def test_the_tolerance_decides(tolerance, right):
    task = load_tasks(TASKS)["trajectory-within"]
    check_rewards([task])
    path = "<think>down</think><answer>[[0, 0], [330, 250], [644, 476]]</answer>"
    record = {"extra": {"tolerance": tolerance}}
    sizes = {"image_size": (644, 476), "processed_size": (644, 476)}
    truth = [[0, 0], [322, 238], [644, 476]]
    assert task.accuracy_reward(path, truth, record=record, thought_end="</think>", **sizes) == right
    assert task.accuracy_reward("no path", truth, record=record, thought_end="</think>", **sizes) == 0.0
