"""A path of the gripper, right or wrong: right if it stays within the record's `tolerance` of the true path.

The demo's task with a reward of 0 or 1, for studies of prompts that are too easy or too hard
(`scripts/demo/make_uneven.py`). `tolerance` is a share of the picture's diagonal, the distance the discrete Frechet
distance.
"""

import math

from task import trajectory_sharerobot as paths
from task.rewards.boxes import plane_size

TASK_CONFIG = paths.TASK_CONFIG | {
    "task_type": "trajectory-within",
    "description": "the path of a robot's gripper through the picture, right within a tolerance",
}

SELF_TEST = paths.SELF_TEST | {"record": paths.SELF_TEST["record"] | {"tolerance": 0.1}}

format_reward = paths.format_reward
process_answer = paths.process_answer
parse_answer = paths.parse_answer


def accuracy_reward(completion, sol, **kw):
    """1.0 for a path within the tolerance, else 0.0."""
    path = parse_answer(completion, **kw)
    if path is None:
        return 0.0
    diagonal = math.hypot(*plane_size(TASK_CONFIG["frame"], kw))
    return float(paths.discrete_frechet(path, sol) <= kw["record"]["extra"]["tolerance"] * diagonal)
