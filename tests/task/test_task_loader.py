"""The registry: what it accepts, what it refuses, and how it says so."""

import re
import shutil
import subprocess
import sys

import pytest
from paths import ROOT
from task_files import write

from task.errors import UserError
from task.task_loader import get_task, load_tasks, print_summary


def test_own_folder_holds_the_trajectory_task():
    tasks = load_tasks()
    task = tasks["trajectory-sharerobot"]
    assert task.path == ROOT / "task" / "trajectory_sharerobot.py"
    assert "my-task" not in tasks  # TEMPLATE.py is no task
    assert task.compute_metrics is not None and task.make_environment is None
    from task import trajectory_sharerobot

    assert task.accuracy_reward is trajectory_sharerobot.accuracy_reward  # one module, not a second copy


def test_importing_the_package_needs_no_torch_and_no_numpy():
    code = "import sys; from task import print_summary; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    code = "import sys; from task import print_summary; print_summary(); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert "trajectory-sharerobot" in done.stdout


def test_template_copied_and_renamed_is_a_working_task(tmp_path):
    shutil.copy(ROOT / "task" / "TEMPLATE.py", tmp_path / "my_task.py")
    task = load_tasks(tmp_path)["my-task"]
    right, wrong = "<think>a</think><answer>Garden  phlox</answer>", "<think>a</think><answer>rose</answer>"
    assert task.format_reward(right, "garden phlox") == 1.0
    assert task.format_reward("garden phlox", "garden phlox") == 0.0
    assert task.accuracy_reward(right, "garden phlox") == (1.0, {"parse_fail": 0})
    assert task.accuracy_reward(wrong, "garden phlox") == (0.0, {"parse_fail": 0})
    assert task.accuracy_reward(right, None) is None
    rows = [{"status": "ok", "prediction": "rose"}, {"status": "parse_fail", "prediction": None}]
    rows.append({"status": "load_error", "prediction": None})
    assert task.compute_metrics(rows) == {"parse_failure_rate": 0.5}
    assert task.compute_metrics([]) == {"parse_failure_rate": 0.0}


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("", "garden phlox", 0.0),
        ("rose or garden phlox or tulip", "garden phlox", 0.0),
        ("A", "A", 1.0),
        ("B", "A", 0.0),
        ("", "A", 0.0),
        ("7", "17", 0.0),
    ],
)
def test_template_compares_and_does_not_search(tmp_path, answer, gold, score):
    shutil.copy(ROOT / "task" / "TEMPLATE.py", tmp_path / "my_task.py")
    task = load_tasks(tmp_path)["my-task"]
    assert task.accuracy_reward(f"<think>t</think><answer>{answer}</answer>", gold)[0] == score


def test_a_good_file_loads(tmp_path):
    path = write(tmp_path, "count-things.py")
    (tmp_path / ".#count.py").write_text("an editor's lock file")
    tasks = load_tasks(tmp_path)
    assert list(tasks) == ["count"]
    assert tasks["count"].path == path
    assert tasks["count"].process_answer is None


PROCESSED = ('"frame": "none"', '"frame": "processed"')


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([("TASK_CONFIG", "TASK_CONFG")], ["has no TASK_CONFIG", "did you mean 'TASK_CONFG'"]),
        ([("TASK_CONFIG = {", "TASK_CONFIG = [] and {")], ["TASK_CONFIG is a list"]),
        ([('"task_type"', '"tasktype"')], ["'task_type'", "did you mean 'tasktype'"]),
        ([('"count"', "7")], ["TASK_CONFIG['task_type'] is 7"]),
        ([('"how many"', '" "')], ["TASK_CONFIG['description'] is ' '"]),
        (
            [('"frame": "none"', '"frame": "none", "system_promt": "x"')],
            ["unknown key", "did you mean 'system_prompt'"],
        ),
        ([("{Question} Count.", "{question} Count.")], ["{Question} exactly once"]),
        ([("{Question} Count.", "{Question} {Question}")], ["{Question} exactly once"]),
        ([("{Question} Count.", "<image>\\n{Question} Count.")], ["grpo_template holds <image>", "leave it out"]),
        ([('"frame": "none"', '"frame": "none", "system_prompt": "See <video>."')], ["system_prompt holds <video>"]),
        ([('"frame": "none"', '"frame": "pixel"')], ["frame is 'pixel'", "norm1000"]),
        ([PROCESSED], ["needs process_answer(answer, size_from, size_to)"]),
        (
            [("def accuracy_reward", "def acuracy_reward")],
            ["accuracy_reward(completion, sol, **kw)", "acuracy_reward'"],
        ),
        (
            [("def format_reward(completion, sol, **kw)", "def format_reward(completion, sol)")],
            ["does not fit the call"],
        ),
        (
            [("def format_reward(completion, sol, **kw)", "def format_reward(completion, **kw)")],
            ["does not fit the call"],
        ),
        ([("def format_reward", "format_reward = 3\n\n\ndef other")], ["format_reward is a int"]),
        (
            [("    return 0.5\n", "    return 0.5\n\n\ndef compute_metric(rows):\n    return {}\n")],
            ["compute_metrics("],
        ),
        ([("    return 0.5\n", "    return 0.5 +\n")], ["cannot be imported", "SyntaxError"]),
        ([("TASK_CONFIG = {", "import no_such_module\nTASK_CONFIG = {")], ["cannot be imported", "no_such_module"]),
    ],
)
def test_a_broken_file_is_named_with_the_way_out(tmp_path, changes, words):
    path = write(tmp_path, "count.py", *changes)
    with pytest.raises(ValueError) as caught:
        load_tasks(tmp_path)
    message = str(caught.value)
    assert re.match(rf"{re.escape(str(path))}(:\d+)?: ", message)
    assert message.endswith(".")
    for word in words:
        assert word in message, message


PLAIN = """
TASK_CONFIG = {"task_type": "count", "grpo_template": "{Question} Count.", "weights": [1, 2], "sft_template": None}


def format_reward(completion, sol, **kw):
    return 1.0


def accuracy_reward(completion, sol, **kw):
    return 0.5
"""
MOVES = """

def process_answer(answer, size_from, size_to):
    return answer
"""
CALLED = """
from task.task_loader import register

register(TASK_CONFIG["task_type"], TASK_CONFIG, format_reward=format_reward, accuracy_reward=accuracy_reward)
"""
DECORATED = """
from task.task_loader import register


@register
def one():
    return 1


@register("count")
def two():
    return 2


assert (one(), two()) == (1, 2)
"""
OWN = """

def register(registry):
    raise RuntimeError("called")
"""


@pytest.mark.parametrize("ending", ["", CALLED, DECORATED, OWN])
def test_a_file_of_the_published_form_is_a_task(tmp_path, ending, capsys):
    (tmp_path / "count.py").write_text(PLAIN + ending)
    task = load_tasks(tmp_path)["count"]
    assert task.config["frame"] == "none" and task.config["weights"] == [1, 2]
    assert task.accuracy_reward("x", "y") == 0.5
    print_summary({"count": task})
    assert "no description" in capsys.readouterr().out
    (tmp_path / "count.py").write_text(PLAIN + MOVES + ending)
    assert load_tasks(tmp_path)["count"].config["frame"] == "processed"


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("system_promt", "system_prompt"),
        ("FRAME", "frame"),
        ("discription", "description"),
        ("grpo_templat", "grpo_template"),
    ],
)
def test_a_key_close_to_a_known_one_is_refused(tmp_path, key, known):
    (tmp_path / "count.py").write_text(PLAIN.replace('"weights"', repr(key)))
    with pytest.raises(UserError, match=f"unknown key '{key}' .did you mean '{known}'"):
        load_tasks(tmp_path)


def test_two_files_of_one_type_are_both_named(tmp_path):
    first, second = write(tmp_path, "a.py"), write(tmp_path, "b.py")
    with pytest.raises(ValueError) as caught:
        load_tasks(tmp_path)
    assert str(first) in str(caught.value) and str(second) in str(caught.value)


def test_no_folder_and_no_file_are_said(tmp_path):
    with pytest.raises(ValueError, match="not a folder"):
        load_tasks(tmp_path / "missing")
    with pytest.raises(ValueError, match="no task file"):
        load_tasks(tmp_path)


def test_an_unknown_type_gets_the_nearest(tmp_path):
    assert get_task("trajectory-sharerobot").name == "trajectory-sharerobot"
    with pytest.raises(ValueError, match="did you mean 'trajectory-sharerobot'"):
        get_task("trajectory_sharerobot")
    write(tmp_path, "count.py")
    tasks = load_tasks(tmp_path)
    with pytest.raises(ValueError, match="known: count"):
        get_task("trajectory-sharerobot", tasks)
    with pytest.raises(ValueError, match="question_type \\['count'\\]"):
        get_task(["count"], tasks)


def test_summary_names_file_and_frame(tmp_path, capsys):
    write(tmp_path, "count.py")
    print_summary(load_tasks(tmp_path))
    assert "count  (count.py; frame none; rewards only)" in capsys.readouterr().out
