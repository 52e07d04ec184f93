"""grpo-ma new-task: a file that loads as it stands, in the folder of the user's own tasks, and never over another."""

import pytest
from paths import ROOT

from scripts import new_task
from task.own_tasks import VARIABLE
from task.task_loader import load_tasks


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv(VARIABLE, "")  # what a command sets is undone


def test_a_new_task_loads_with_its_own_name(tmp_path, capsys):
    folder = tmp_path / "mine"
    assert new_task.main(["colour-naming", "--task_dir", str(folder)]) == 0
    assert f"grpo-ma smoke --task_dir {folder}" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["colour_naming.py"]
    text = (folder / "colour_naming.py").read_text()
    assert text.startswith('"""colour-naming: describe the task here."""\n\nfrom task') and "my-task" not in text
    assert "colour-naming" in load_tasks()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../x", "a task cannot be called '../x'"),
        ("a b", "a task cannot be called 'a b'"),
        ("ocr-vqa", "task_type 'ocr-vqa' is already taken by"),
        ("twice", "twice.py exists already"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_leaves_nothing(tmp_path, capsys, name, words):
    (tmp_path / "twice.py").write_text((ROOT / "task" / "TEMPLATE.py").read_text())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert new_task.main([name, "--task_dir", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
