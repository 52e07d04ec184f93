"""METRICS of the task files: which values of a metric are better, and what the loader refuses."""

import re

import pytest
from paths import ROOT
from task_files import write

from task.rewards.directions import EVERY_TASK, direction
from task.task_loader import load_tasks
from trainer.evaluation.summary import STATUSES

LOWER = {"parse_failure_rate", "scale_suspect", "syntax_error_rate", "fell_share", "moves", "turns", "tool_calls"}
LOWER |= {f"{name}_{unit}" for name in ("dfd", "hausdorff", "rmse", "endpoint") for unit in ("px", "1000")}
UNDECLARED = {"boxed_share"}  # neither is better: the box is optional


def documented() -> list[tuple[str, str]]:
    """(task, metric) of the tables in metadata/README.md, whose last column names the metrics."""
    text = (ROOT / "metadata" / "README.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    tasks = load_tasks()
    found = []
    for cells in rows:
        task = re.match(r"\s*`([\w-]+)`", cells[0])[1]
        found += [
            (task, metric) for metric in re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", cells[-1])) if task in tasks
        ]
    return found


def test_every_documented_metric_has_the_direction_of_its_task():
    tasks, found = load_tasks(), documented()
    assert {task for task, _ in found} >= tasks.keys() - {"trajectory-sharerobot"}
    for name, metric in found:
        metric = metric.replace("NAME", "reach").replace("_N_", "_2_")
        wanted = None if metric in UNDECLARED else "lower" if metric in LOWER else "higher"
        assert direction(metric, tasks[name].metrics) == wanted, (name, metric)
    trajectory = tasks["trajectory-sharerobot"].metrics
    assert {direction(metric, trajectory) for metric in LOWER if metric.endswith(("_px", "_1000"))} == {"lower"}
    without = {"search_qa", "gridworld", "open_question"}
    assert {direction("parse_failure_rate", tasks[name].metrics) for name in tasks.keys() - without} == {"lower"}


def test_the_metrics_of_every_task_have_a_direction():
    assert [direction(name, {}) for name in ("accuracy", "format", "pass@8", "mean@4")] == ["higher"] * 4
    assert {direction(f"n_{status}", {}) for status in STATUSES[1:]} == {"lower"}
    assert {name for name in EVERY_TASK if name.startswith("n_")} == {f"n_{status}" for status in STATUSES[1:]}
    assert direction("n", {}) is None
    assert direction("f1[a]", {"f1[a]": "lower"}) == "lower", "a name is taken as it is written first"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("METRICS = ['iou']", ["METRICS is a list", '{"dfd_px": "lower"}']),
        ("METRICS = {'iou': 'up'}", ["METRICS has 'iou': 'up'", "lower or higher"]),
        ("METRICS = {'iou': ['lower']}", ["METRICS has 'iou'"]),
        ("METRICS = {3: 'lower'}", ["METRICS has 3: 'lower'"]),
        ("METRIC = {'iou': 'higher'}", ["has no METRICS", "did you mean 'METRIC'"]),
        ("METRICS = {'accuracy': 'lower'}", ["METRICS has 'accuracy': 'lower'", "better when higher"]),
        ("METRICS = {'pass@2': 'lower'}", ["METRICS has 'pass@2': 'lower'"]),
    ],
)
def test_the_loader_refuses_a_faulty_declaration(tmp_path, line, words):
    path = write(tmp_path, "count.py", ("    return 0.5\n", f"    return 0.5\n\n\n{line}\n"))
    with pytest.raises(ValueError) as caught:
        load_tasks(tmp_path)
    assert str(caught.value).startswith(f"{path}: ") and str(caught.value).endswith(".")
    for word in words:
        assert word in str(caught.value)


def test_a_file_without_declarations_loads(tmp_path):
    write(tmp_path, "count.py")
    assert load_tasks(tmp_path)["count"].metrics == {}
