"""scripts/smoke_test.py, and the guard that every script starts with, in copies of the checkout."""

import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

SMOKE = ROOT / "scripts" / "smoke_test.py"


@pytest.fixture
def copy(tmp_path):
    """A checkout with the packages and the smoke test, free to be broken."""
    for folder in ("task", "dataset", "model", "trainer", "config"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "scripts").mkdir()
    for name in ("_root.py", "smoke_test.py"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    return tmp_path


def run(script: Path, cwd: Path, **environment):
    return subprocess.run(
        [sys.executable, str(script)], cwd=cwd, env={"PATH": "/usr/bin", **environment}, capture_output=True, text=True
    )


def test_smoke_test_passes_from_any_folder(tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(SMOKE, tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 15  # seconds, on a busy machine too
    assert "FAIL" not in done.stdout and "trajectory-sharerobot" in done.stdout
    assert f"tasks from {ROOT / 'task'}" in done.stderr


def test_a_task_dropped_into_the_checkout_is_seen(copy):
    shutil.copy(copy / "task" / "TEMPLATE.py", copy / "task" / "my_task.py")
    done = run(copy / "scripts" / "smoke_test.py", ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reward, my-task" in done.stdout
    assert f"tasks from {copy / 'task'}" in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "failing"),
    [
        ("def accuracy_reward", "def acuracy_reward", "registry"),
        ("return math.exp(", "return 0.4 * math.exp(", "reward, trajectory-sharerobot"),
        ("min(measure(path, truth), worst) if path", "math.inf if path", "metrics, trajectory-sharerobot"),
        ("import numpy as np", "import numpy as np\nimport torch", "no torch needed"),
        (
            '"parse_failure_rate": "lower"',
            '"parse_failures_rate": "lower"',
            "metrics, trajectory-sharerobot: CheckFailed: METRICS of",
        ),
    ],
)
def test_a_fault_fails_the_check_it_concerns(copy, old, new, failing):
    path = copy / "task" / "trajectory_sharerobot.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    (copy / "torch.py").write_text("")  # a stand-in: the real one takes seconds to import
    done = run(copy / "scripts" / "smoke_test.py", copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAIL  {failing}" in done.stdout


def test_a_package_from_elsewhere_is_refused(copy, tmp_path_factory):
    """The checkout's root comes before PYTHONPATH; a module already loaded from elsewhere is refused."""
    other = tmp_path_factory.mktemp("other")
    (other / "task").mkdir()
    (other / "task" / "__init__.py").write_text("")
    script = copy / "scripts" / "smoke_test.py"
    assert run(script, other, PYTHONPATH=str(other)).returncode == 0
    loaded = f"import sys, runpy; import task; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", loaded], cwd=other, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"`import task` would load {other / 'task'}, not {copy / 'task'}" in done.stderr


def test_a_parse_answer_that_raises_is_named_with_its_line(copy):
    text = (copy / "task" / "TEMPLATE.py").read_text(encoding="utf-8")
    good = 'return answer_text(completion, kw.get("thought_end", "</think>"))'
    assert good in text
    (copy / "task" / "my_task.py").write_text(text.replace(good, f"{good}.lower()"), encoding="utf-8")
    done = run(copy / "scripts" / "smoke_test.py", ROOT)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FAIL  metrics, my-task")]
    assert re.search(r"my_task.py:\d+: parse_answer failed on '' \(AttributeError: .*return None where", line), line
