"""A task file copied into task/ is found by the scripts, whatever directory they are started from."""

import json
import shutil
import subprocess
import sys

import pytest
from paths import ROOT


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the project with a new task dropped in, beside another package called `task` and a manifest."""
    folder = tmp_path_factory.mktemp("any where") / "checkout"
    for name in ("config", "dataset", "model", "scripts", "task", "trainer"):
        ignored = shutil.ignore_patterns("__pycache__", "tiny_model", "*.png")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "train.py", folder)
    shutil.copy(folder / "task" / "TEMPLATE.py", folder / "task" / "dropped_in.py")
    (folder.parent / "elsewhere" / "task").mkdir(parents=True)
    (folder.parent / "elsewhere" / "task" / "__init__.py").write_text("")
    record = {"question": "q", "answer": "a", "question_type": "my-taks"}
    (folder.parent / "data.jsonl").write_text(json.dumps(record))
    (folder.parent / "data.yaml").write_text("datasets:\n- json_path: data.jsonl\n")
    return folder


SCRIPTS = [
    ("scripts/eval/eval.py", ["--dataset", "--model_name_or_path"]),
    pytest.param("train.py", ["--dataset_name", "--model_name_or_path"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("script", "flags"), SCRIPTS)
def test_a_task_dropped_into_the_checkout_is_seen_from_any_directory(checkout, tmp_path, script, flags):
    data, model = flags
    tiny = ROOT / "scripts" / "demo" / "tiny_model"
    arguments = [data, checkout.parent / "data.yaml", model, tiny, "--output_dir", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, checkout / script, *arguments],
        cwd=checkout.parent / "elsewhere",  # where `import task` alone would find another package
        env={"PATH": "/usr/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 2, done.stderr
    assert "no task has question_type 'my-taks' (did you mean 'my-task'?)" in done.stderr
    assert f"tasks from {checkout / 'task'}" in done.stderr
