"""Checks before any rollout that a task can score a record and that its answer lies inside the picture."""

from __future__ import annotations

from dataclasses import replace

from task.errors import UserError, place_of
from task.rewards.frames import frame_size
from task.rewards.router import reward_arguments
from task.task_loader import Task

SLACK = 1.0  # pixels that an answer may lie outside its picture: annotations are rounded


def check_record(task: Task, record: dict, image_size, processed_size) -> None:
    """Scores an empty completion with the task's rewards, as training would.

    Args:
        record: as returned by `read_row`.
        image_size, processed_size: (width, height) of its first picture or frame, or None.

    Raises:
        UserError: a reward fails, so it would fail on every completion: the answer does not have the task's form, or a
            picture is missing.
    """
    try:
        sol, keywords = reward_arguments(task, record, image_size, processed_size)
        task.format_reward("", sol, **keywords)
        task.accuracy_reward("", sol, **keywords)
    except Exception as error:
        error = error.__cause__ or error  # the message of process_answer, without the sentence around it
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if task.is_own:
            raise UserError(
                f"{place_of(error, task.path)}: the rewards cannot score record {record['id']!r} ({reason}): correct "
                "the reward, or the record's answer, media or question_type."
            ) from error
        raise UserError(
            f"record {record['id']!r}: the rewards of {task.path} cannot score it ({reason}): correct its answer, its "
            "media or its question_type."
        ) from error


def check_inside(task: Task, record: dict, image_size) -> None:
    """Checks that the points and boxes of an answer are in pixels of the picture.

    Args:
        image_size: (width, height) of its first picture or frame, or None, which skips the check.

    Raises:
        UserError: some lie outside the picture, or all lie within its first pixel.
    """
    size = frame_size(task.config["frame"], image_size, image_size)
    if size is None:
        return
    task = replace(task, coordinate_frame="processed")  # for the record's own pixels
    shapes = list(_shapes(reward_arguments(task, record, image_size, image_size)[0]))
    outside = [
        shape
        for shape in shapes
        if any(not -SLACK <= number <= size[place % 2] + SLACK for place, number in enumerate(shape))
    ]
    if outside:
        raise UserError(
            f"record {record['id']!r}: {outside[0]} lies outside the picture of {size[0]}x{size[1]} pixels: is the "
            "scale right? Records hold pixels of the picture as it is displayed."
        )
    if shapes and max(map(max, shapes)) <= 1:
        raise UserError(
            f"record {record['id']!r}: all numbers of {shapes[0]} lie between 0 and 1: are they fractions of the "
            "picture? Records hold pixels."
        )


def _shapes(value):
    """Every list of two or four numbers in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        if len(value) in (2, 4) and all(isinstance(n, int | float) and not isinstance(n, bool) for n in value):
            yield value
        else:
            for one in value:
                yield from _shapes(one)
