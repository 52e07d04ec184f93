"""Whether a task can score a record at all, before a rollout is paid for it."""

from __future__ import annotations

from model.reward_func import reward_arguments
from task.task_loader import Task


def check_record(task: Task, record: dict, image_size, processed_size, thought_end: str = "</think>") -> None:
    """Asks the task's rewards about an empty completion, as training would.

    Args:
        record: what `read_row` gives.
        image_size, processed_size: (width, height) of its first picture or frame, or None.

    Raises:
        ValueError: a reward fails, so that it would fail on every completion: the answer has another form than the
            task's, or a picture is missing.
    """
    try:
        sol, keywords = reward_arguments(task, record, image_size, processed_size, thought_end)
        task.format_reward("", sol, **keywords)
        task.accuracy_reward("", sol, **keywords)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"record {record['id']!r}: the rewards of {task.path} cannot score it ({type(error).__name__}: {reason}): "
            "correct its answer, its media or its question_type."
        ) from error
