"""What docs/methods.md shows works as its text stands there: a new method and a new policy."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from paths import ROOT
from scripted_growth import ScriptedEngine

from trainer.methods import METHODS

TEXT = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
FOLDERS = ("config", "dataset", "model", "task", "trainer", "scripts", "metadata/demo")
RECIPE = ("--config", "config/recipes/grpo_demo.yaml", "--method", "best_of", "--max_steps", "2", "--seed", "1")
SMALL = ("--num_generations", "4", "--per_device_train_batch_size", "8")
SHOWN = ("--use_cpu", "true", "--log_trees", "every:1", "--logging_steps", "1")


def blocks(heading: str) -> list[str]:
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.fixture(scope="module")
def with_best_of(tmp_path_factory):
    """A copy of the checkout with the two files, the import and the row of the page."""
    root = tmp_path_factory.mktemp("with_best_of")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    shutil.copy(ROOT / "train.py", root)
    settings, estimator, imported, row = blocks("A new method")
    for name, text in (("config/methods/best_of.py", settings), ("trainer/advantages/best_of.py", estimator)):
        assert f"`{name}`" in TEXT and not (root / name).exists()
        (root / name).write_text(text, encoding="utf-8")
    table = root / "trainer" / "methods.py"
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    lines.insert(lines.index("METHODS = {\n") + 1, row)
    lines.insert(next(i for i, line in enumerate(lines) if line.startswith("from trainer.")), imported)
    table.write_text("".join(lines), encoding="utf-8")
    return root


def run(root, *command: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *command], cwd=root, capture_output=True, text=True, timeout=600)


def lost_without(rewards: list[float]) -> list[float]:
    """For each reward, how much lower the largest would be without it."""
    return [max(rewards) - max(rewards[:i] + rewards[i + 1 :]) for i in range(len(rewards))]


def test_the_table_names_every_method():
    table = TEXT.split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(METHODS)


@pytest.mark.slow
def test_the_new_method_trains_with_its_own_advantages(with_best_of):
    out = run(with_best_of, "train.py", *RECIPE, *SMALL, *SHOWN, "--output_dir", "runs/best_of")
    assert out.returncode == 0, out.stderr
    assert re.search(r"^  method +best_of +flag$", out.stdout, re.MULTILINE)
    assert re.search(r"^  learning_rate +0.0004 +recipe$", out.stdout, re.MULTILINE)
    assert re.search(r"^  beta +0.0 +preset of best_of$", out.stdout, re.MULTILINE)
    assert (with_best_of / "runs/best_of/adapter_model.safetensors").exists()
    trees = [json.loads(line) for line in (with_best_of / "runs/best_of/trees.jsonl").read_text().splitlines()]
    assert [tree["step"] for tree in trees] == [0, 0, 1, 1]
    differ = 0
    for tree in trees:
        rewards = [row["reward"] for row in tree["rows"]]
        assert len(rewards) == 4
        differ += len(set(rewards)) > 1
        advantages = [row["advantage"] for row in tree["rows"]]  # the log rounds them and the rewards to 4 decimals
        assert advantages == pytest.approx(lost_without(rewards), abs=2e-4)
    assert differ


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "value", "sentence"),
    [
        ("num_generations", "1", "an advantage compares at least 2 generations per prompt; set it to 2 or more"),
        ("scale_rewards", "batch", "best_of divides by no standard deviation; leave it out"),
    ],
)
def test_the_new_method_checks_its_settings(with_best_of, flag, value, sentence):
    out = run(with_best_of, "train.py", *RECIPE, f"--{flag}", value, "--output_dir", "runs/refused")
    assert out.returncode == 2
    assert out.stderr.strip().endswith(f"{flag}={value}: {sentence}")


@pytest.mark.slow
def test_the_new_method_stands_in_the_help(with_best_of):
    out = run(with_best_of, "train.py", "--help", "all")
    assert "best_of (G chains, of which the best counts)" in " ".join(out.stdout.split())


def test_the_new_estimator_by_hand(with_best_of):
    code = (
        "from trainer.advantages.best_of import best_of\n"
        "nan = float('nan')\n"
        "print(best_of([1, 5, 2, nan, 3, 4], [0, 1, 0, 0, 0, 2]).tolist())"
    )
    out = run(with_best_of, "-c", code)
    assert json.loads(out.stdout) == [0.0, 0.0, 0.0, 0.0, 3 - 2, 0.0]
    out = run(with_best_of, "-m", "doctest", "-v", "trainer/advantages/best_of.py")
    assert out.returncode == 0 and "1 passed" in out.stdout, out.stdout


def test_the_new_policy():
    found = {}
    (text,) = blocks("A new policy")
    exec(text, found)
    policy = found["OpeningPolicy"](openings=3, opening_tokens=2, max_tokens=5)
    (tree,) = ScriptedEngine(lambda path: {1: 0.5, 2: 0.5}).grow(policy, ["p"])
    assert policy.leaves == len(tree.leaves()) == 6
    assert {len(tree.tokens(leaf)) for leaf in tree.leaves()} == {5}
