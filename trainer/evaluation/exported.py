"""An exported test set (scripts/export/): completions that another tool generated, scored as eval.py scores its own."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from task.own_tasks import use_task_dir
from task.rewards.self_test import check_rewards
from task.task_loader import Task, load_tasks
from trainer.evaluation.batches import Sample
from trainer.evaluation.item_metrics import item_metrics
from trainer.evaluation.scoring import scored
from trainer.evaluation.summary import summarise

SETTINGS, OWN_TASKS = "settings.json", "own_tasks"  # in the exported folder


class Score(float):
    """One record's value of a metric, NaN if it has none, with the metric's name and the record's prediction.

    Metrics such as F1 are no means over records: `ExportedTests.aggregate` computes them from the predictions.
    """

    metric: str
    prediction: dict


class ExportedTests:
    """The tasks of an exported folder, bound to the tags and the coordinate frame of the exported run.

    Args:
        folder: holds settings.json with thought_end, coordinate_frame, opened_thought (what the chat template writes of
            every completion) and metrics (task_type -> names), and own_tasks/ if the tasks are the user's own.
    """

    def __init__(self, folder: Path):
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        if (folder / OWN_TASKS).is_dir():
            use_task_dir(str(folder / OWN_TASKS))
        frame = settings["coordinate_frame"]
        self.tasks = load_tasks(thought_end=settings["thought_end"], coordinate_frame=frame)
        self.opened_thought, self.metrics = settings["opened_thought"], settings["metrics"]

    def check(self) -> None:
        """Raises UserError if a task's rewards fail their SELF_TEST: the other tool's environment may lack packages."""
        check_rewards(self.tasks[name] for name in self.metrics)

    def prediction(self, row: dict, completion: str) -> dict:
        """The columns of predictions.jsonl. `row` has record, image_sizes and processed_sizes, (width, height) each.

        The status is never `length`: other tools do not report that a completion was cut.
        """
        task = self.tasks[row["record"]["question_type"]]
        text = self.opened_thought + completion
        return scored(task, row["record"], SimpleNamespace(**row), [Sample([], "ok", 0)], lambda _: text)

    def scores(self, row: dict, completion: str) -> dict[str, Score]:
        """Every metric of the record's task for one completion."""
        prediction = self.prediction(row, completion)
        task = self.tasks[prediction["question_type"]]
        values = metrics_of_one(prediction, task)
        found = {}
        for name in self.metrics[task.name]:
            found[name] = score = Score(values.get(name, math.nan))
            score.metric, score.prediction = name, prediction
        return found

    def aggregate(self, scores: list[Score]) -> float:
        """The metric over all records, as in metrics.json; NaN if these records do not have it."""
        found = self.summary([score.prediction for score in scores])
        value = found[scores[0].prediction["question_type"]].get(scores[0].metric)
        return math.nan if value is None else float(value)

    def summary(self, predictions: list[dict]) -> dict[str, dict[str, float]]:
        """task_type -> metrics, as in metrics.json; without the counts of statuses, which other tools do not report."""
        found = summarise(predictions, self.tasks)
        return {
            task_type: {name: value for name, value in metrics.items() if not name.startswith("n_")}
            for task_type, metrics in found.items()
        }


def metrics_of_one(prediction: dict, task: Task) -> dict[str, float]:
    """`item_metrics`, without the task's own if they need more than one prediction."""
    try:
        return item_metrics(prediction, task)
    except Exception:
        return item_metrics(prediction, None)


def metric_names(task: Task, rows: list[dict]) -> list[str]:
    """The metrics that evaluation has for these records, read from predictions without an answer.

    Counts of statuses are left out, since other tools do not report the statuses.
    """
    silent = replace(
        task,
        format_reward=lambda *args, **kw: 0.0,
        accuracy_reward=lambda *args, **kw: 0.0,  # the task's own might ask a judge
        parse_answer=lambda *args, **kw: None,
    )
    unanswered = Sample([], "ok", 0)
    predictions = [scored(silent, row["record"], SimpleNamespace(**row), [unanswered], lambda _: "") for row in rows]
    found = summarise(predictions, {task.name: task})[task.name]
    return [name for name in found if name != "n" and not name.startswith("n_")]
