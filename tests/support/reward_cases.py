"""Tasks of a few lines, records for them, and completions scored as training scores them."""

import json
from pathlib import Path

from task.rewards.router import TaskReward
from task.task_loader import Task


def make_task(name="words", accuracy=None, form=None, process=None, frame="none", **more) -> Task:
    return Task(
        name=name,
        path=Path(f"task/{name}.py"),
        config={"task_type": name, "frame": frame, "grpo_template": "{Question}"},
        format_reward=form or (lambda completion, sol, **kw: 1.0 if completion else 0.0),
        accuracy_reward=accuracy or (lambda completion, sol, **kw: float(completion == sol)),
        process_answer=process,
        **more,
    )


def row(question_type="words", answer="yes", **more) -> str:
    return json.dumps({"id": "r1", "question_type": question_type, "answer": answer, **more})


def score(task: Task, completions, kind="accuracy", record=None, **kw):
    options = {name: kw.pop(name) for name in ("on_reward_error", "timeout") if name in kw}
    reward = TaskReward(kind, {task.name: task}, **options)
    return reward(completions=completions, record=record or [row(task.name)] * len(completions), **kw)
