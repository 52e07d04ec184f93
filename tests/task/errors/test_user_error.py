"""A user's mistake is a UserError in every package; other errors keep their traceback."""

import ast
import sys

import pytest
from paths import ROOT

import train
from dataset.media import MediaError
from model.loading import AdapterError
from task.errors import UserError, library_refusals
from task.rewards.router import RewardError
from task.runners.optional import MissingPackage
from trainer.prompts import PromptError
from trainer.run.checkpoints import CheckpointError
from trainer.run.faults import StepError

PACKAGES = ("config", "dataset", "model", "task", "trainer")
# Signals that a caller in the same file or the json module handles; none reaches a user.
SIGNALS = {
    "dataset/records.py": 3,
    "task/parsing/answers.py": 1,
    "task/retrieval/http_retriever.py": 1,
    "trainer/policies/agent/arguments.py": 1,
}
DEMO = ["--config", str(ROOT / "config/recipes/grpo_ma_demo.yaml")]


@pytest.mark.parametrize(
    "kind", [AdapterError, CheckpointError, MediaError, MissingPackage, PromptError, RewardError, StepError]
)
def test_errors_with_a_name_are_user_errors(kind):
    assert issubclass(kind, UserError)
    assert issubclass(kind, ValueError)


def value_errors_raised(source: str) -> int:
    raised = [node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise)]
    return sum(isinstance(exc, ast.Call) and getattr(exc.func, "id", None) == "ValueError" for exc in raised)


def test_packages_raise_user_errors_and_no_plain_value_errors():
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = {path.relative_to(ROOT).as_posix(): value_errors_raised(path.read_text("utf-8")) for path in files}
    assert {name: count for name, count in found.items() if count} == SIGNALS
    assert value_errors_raised("def f():\n    raise ValueError('wrong')\n") == 1


def test_a_refusal_of_a_library_is_a_user_error_while_it_checks_settings():
    with pytest.raises(UserError, match="no such optimiser"), library_refusals(ValueError):
        raise ValueError("no such optimiser")
    with pytest.raises(MissingPackage), library_refusals(ValueError):
        raise MissingPackage("one")
    with pytest.raises(TypeError), library_refusals(ValueError):
        raise TypeError("another kind")
    with pytest.raises(ValueError) as caught, library_refusals(ValueError, checking=lambda: False):
        raise ValueError("in training")
    assert type(caught.value) is ValueError


def test_train_ends_with_a_sentence_for_a_user_error_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", *DEMO, "--output_dir", str(tmp_path)])

    def fails(error: Exception):
        monkeypatch.setattr(train, "build", lambda *args: (_ for _ in ()).throw(error))
        train.main()

    with pytest.raises(SystemExit) as ended:
        fails(UserError("no records: give one"))
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("no records: give one\n")
    with pytest.raises(ValueError, match="invalid literal"):
        fails(ValueError("invalid literal for int()"))


def test_a_mistake_of_the_trainer_keeps_its_traceback(monkeypatch, tmp_path):
    """An error from a file of the project is not a user's for that reason."""
    monkeypatch.setattr(sys, "argv", ["train.py", *DEMO, "--output_dir", str(tmp_path)])

    class Trainer:
        lr_scheduler = "made"

        def train(self, resume_from_checkpoint):
            exec(compile("int('x')", str(ROOT / "trainer" / "rollout.py"), "exec"))

    monkeypatch.setattr(train, "build", lambda *args: Trainer())
    with pytest.raises(ValueError, match="invalid literal"):
        train.main()
