"""Several task families in one run, and each family of words, programs, puzzles and robots on its own."""

import json
import math
import sys
from collections import defaultdict
from statistics import fmean

import pytest
from paths import ROOT

from task.rewards.router import task_rewards
from task.rewards.self_test import run_self_test
from task.runners.optional import Unavailable
from task.task_loader import load_tasks

DEMO = ROOT / "metadata" / "demo"
FAMILIES = {
    "affordance": "affordance-sharerobot",
    "detection": "object-detection",
    "demand": "demand-prediction",
    "ocr": "ocr-vqa",
    "math": "math-reasoning",
    "code": "code-generation",
    "reasoning": "reasoning-gym",
    "manipulation": "manipulation-sim",
}
HERE = ("math", "code", "reasoning", "manipulation")  # the others: test_demo_families.py


def runnable(family: str) -> bool:
    try:
        return run_self_test(load_tasks()[FAMILIES[family]]) is not None
    except Unavailable:
        return False


@pytest.fixture
def train(monkeypatch, one_thread):
    """train.py from the command line on demo families: `train(folder, families)` -> its log."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.chdir(ROOT)
    import train as module

    def call(folder, families, **changes):
        flags = {"max_steps": 2, "think_num": 2, "answer_num": 2, "per_device_train_batch_size": 4, "logging_steps": 1}
        flags |= {"max_thought_length": 16, "max_answer_length": 16, "output_dir": folder, "use_cpu": True} | changes
        argv = ["train.py", "--config", "config/recipes/grpo_ma_demo.yaml", "--dataset_name"]
        argv += [str(DEMO / f"{family}_train.yaml") for family in families]
        monkeypatch.setattr(sys, "argv", [*argv, *(f"--{name}={value}" for name, value in flags.items())])
        module.main()
        return json.loads((folder / "trainer_state.json").read_text())["log_history"]

    return call


@pytest.mark.parametrize("family", HERE)
def test_demo_records_are_small_and_their_splits_differ(family):
    files = [path for path in (DEMO / family).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    rows = {
        split: [json.loads(line) for line in (DEMO / family / f"{split}.jsonl").read_text().splitlines()]
        for split in ("train", "test")
    }
    assert len(rows["train"]) >= 24 and len(rows["test"]) >= 8
    assert {row["question_type"] for split in rows.values() for row in split} == {FAMILIES[family]}
    assert not {row["id"] for row in rows["train"]} & {row["id"] for row in rows["test"]}


def test_the_text_families_are_what_the_script_makes(tmp_path):
    from scripts.demo.make_text_records import main

    assert main(["--out", str(tmp_path), "--families", "math", "code"]) == 0
    for family in ("math", "code"):
        for split in ("train", "test"):
            made = (tmp_path / family / f"{split}.jsonl").read_text()
            assert made == (DEMO / family / f"{split}.jsonl").read_text()
            assert (tmp_path / f"{family}_{split}.yaml").read_text() == (DEMO / f"{family}_{split}.yaml").read_text()


def test_each_task_of_a_mixed_batch_has_its_own_mean():
    records = [
        {"id": "a", "question_type": "math-reasoning", "question": "?", "answer": "7", "images": [], "extra": {}},
        {"id": "b", "question_type": "ocr-vqa", "question": "?", "answer": "seven", "images": [], "extra": {}},
    ]
    rows = [json.dumps(records[place]) for place in (0, 0, 1, 1)]
    said = ["<think>t</think><answer>7</answer>", "<answer>8</answer>", "<think>t</think><answer>Seven</answer>", ""]
    logged = defaultdict(list)

    def log(name, value):
        logged[name].append(value)

    for reward in task_rewards(load_tasks()):
        values = reward(completions=said, record=rows, log_metric=log)
        assert values[0] == 1.0 and values[2] == 1.0 and values[1] == values[3] == 0.0
    for name in ("math-reasoning", "ocr-vqa"):
        assert fmean(logged[f"rewards/{name}/format"]) == 0.5 and fmean(logged[f"rewards/{name}/accuracy"]) == 0.5
    lost = task_rewards(load_tasks())[1]
    logged.clear()
    lost(completions=said, record=rows, failed=[True, True, False, False], log_metric=log)
    assert "rewards/math-reasoning/accuracy" not in logged and logged["rewards/ocr-vqa/accuracy"] == [1.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("family", HERE)
def test_a_family_trains_two_steps_and_evaluates(family, train, tiny_model_dir, tmp_path):
    from scripts.eval import eval as evaluation

    if not runnable(family):
        pytest.skip(f"{family} needs an extra that is not installed")
    log = train(tmp_path / "run", [family])
    name = FAMILIES[family]
    steps = [entry for entry in log if "loss" in entry]
    assert len(steps) == 2 and all(math.isfinite(entry["loss"]) for entry in steps)
    assert all(0 <= entry[f"rewards/{name}/{kind}"] <= 1 for entry in steps for kind in ("format", "accuracy"))
    # The model itself: where every reward was 0 the adapter has learnt nothing, and evaluation refuses such a one.
    flags = ["--model_name_or_path", str(tiny_model_dir), "--dataset", str(DEMO / f"{family}_test.yaml")]
    assert evaluation.main([*flags, "--output_dir", str(tmp_path / "eval"), "--max_new_tokens", "40"]) == 0
    found = json.loads((tmp_path / "eval" / "metrics.json").read_text())["metrics"][name]
    assert 0 <= found["accuracy"] <= 1 and 0 <= found["parse_failure_rate"] <= 1


@pytest.mark.slow
def test_all_families_train_in_one_run(train, tmp_path):
    families = [family for family in FAMILIES if runnable(family)]
    log = train(tmp_path, ["trajectory", *families], max_steps=3, per_device_train_batch_size=32, log_completions=True)
    steps = [entry for entry in log if "loss" in entry]
    assert len(steps) == 3 and all(math.isfinite(entry["loss"]) for entry in steps)
    names = {key.split("/")[1] for entry in steps for key in entry if key.startswith("rewards/")}
    seen = names & {FAMILIES[family] for family in families}
    assert len(seen) >= 2, names  # 24 prompts are drawn from 700 by a fixed seed
    for entry in steps:
        assert all(0 <= entry[f"rewards/{name}/format"] <= 1 for name in seen if f"rewards/{name}/format" in entry)
