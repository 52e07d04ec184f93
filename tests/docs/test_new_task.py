"""Adding a task as the README says: its own commands, in a copy of the checkout, then training and evaluation."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from paths import ROOT

FOLDERS = ("task", "dataset", "model", "trainer", "config", "scripts")


@pytest.fixture
def checkout(tmp_path):
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    shutil.copy(ROOT / "train.py", tmp_path)
    return tmp_path


@pytest.fixture
def follow(checkout):
    """Runs the commands of the README's section; returns what the last one printed."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Adding a task")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```bash\n(.*?)```", section, re.S)
    commands = [line.partition("  #")[0].strip() for line in block.splitlines()]
    assert len(commands) == 2 and commands[0].startswith("cp task/TEMPLATE.py")

    def call() -> str:
        for command in commands:
            command = command.replace(".venv/bin/python", sys.executable)
            done = subprocess.run(command, shell=True, cwd=checkout, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            path = checkout / "task" / "my_task.py"
            path.write_text(path.read_text().replace('"my-task"', '"flower-name"'))
        return done.stdout

    return call


def run(checkout, elsewhere, *command):
    done = subprocess.run([sys.executable, *map(str, command)], cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_readme_commands_make_a_task(follow):
    printed = follow()
    assert "flower-name" in printed and "FAIL" not in printed
    assert "ok    reward, flower-name: 8 hostile texts 0, right 1.00, wrong 0.00" in printed


@pytest.mark.slow
def test_the_new_task_trains_and_evaluates_from_another_folder(checkout, follow, tmp_path_factory):
    follow()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    rows = [{"question": f"Flower {n}?", "answer": "rose", "question_type": "flower-name"} for n in range(4)]
    (elsewhere / "flowers.json").write_text(json.dumps(rows))
    manifest = elsewhere / "flowers.yaml"
    manifest.write_text("datasets:\n- json_path: flowers.json\n")
    recipe = checkout / "config" / "recipes" / "grpo_ma_demo.yaml"
    flags = ["--dataset_name", manifest, "--output_dir", elsewhere / "run", "--max_steps", 2, "--think_num", 2]
    flags += ["--answer_num", 2, "--per_device_train_batch_size", 4, "--max_thought_length", 16, "--use_cpu", "true"]
    run(checkout, elsewhere, checkout / "train.py", "--config", recipe, *flags, "--max_answer_length", 8)
    assert json.loads((elsewhere / "run" / "trainer_state.json").read_text())["global_step"] == 2
    script = checkout / "scripts" / "eval" / "eval.py"
    flags = ["--model_name_or_path", checkout / "scripts" / "demo" / "tiny_model", "--dataset", manifest]
    flags += ["--output_dir", elsewhere / "eval"]
    run(checkout, elsewhere, script, *flags, "--max_new_tokens", 8)
    found = json.loads((elsewhere / "eval" / "metrics.json").read_text())["metrics"]["flower-name"]
    assert 0 <= found["accuracy"] <= 1
