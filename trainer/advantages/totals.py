"""One reward per row: from several functions, some of which abstain on some rows, and from the turns of an episode."""

from __future__ import annotations

import numpy as np


def row_totals(values, weights, prompts, is_task_reward) -> np.ndarray:
    """(N,) weighted sums over the functions that did not abstain; NaN for a row that is excluded from its group.

    A row is excluded if every function with a nonzero weight abstained on it, or if a task's own reward abstained on it
    that scored another row of the same prompt: without that part of its reward the row would look like a wrong answer.

    Args:
        values: (N, F) rewards, NaN where a function abstains.
        weights: (F,); functions of weight 0 are ignored.
        prompts: (N,) prompt group id of each row.
        is_task_reward: (F,) bool, True for functions that either score a prompt or abstain on all of its rows, so that
            abstaining on some rows only means that they failed there.

    >>> row_totals([[1, 1], [1, np.nan], [1, 0], [1, np.nan]], [0.5, 1], [0, 0, 0, 1], [True, True]).tolist()
    [1.5, nan, 0.5, 0.5]
    """
    weights, prompts = np.asarray(weights, dtype=np.float64), np.asarray(prompts)
    counts = weights != 0
    values = np.asarray(values, dtype=np.float64)[:, counts]
    abstains = np.isnan(values)
    out = abstains.all(axis=1)
    for column in np.flatnonzero(np.asarray(is_task_reward)[counts]):
        out |= abstains[:, column] & np.isin(prompts, prompts[~abstains[:, column]])
    return np.where(out, np.nan, np.nansum(values * weights[counts], axis=1))


def discounted(turn_rewards: list[float], gamma: float) -> tuple[float, float]:
    """(the discounted sum of the rewards of an episode's turns, the discount of its final reward).

    With r_t the reward of turn t and R the final one, which comes with the last turn, the episode's return is the sum
    over t = 1 .. T of gamma^(t-1) * r_t, plus gamma^(T-1) * R.

    >>> discounted([1.0, 0.0, 2.0], 0.5)
    (1.5, 0.25)
    """
    total = sum(gamma**t * reward for t, reward in enumerate(turn_rewards))
    return total, gamma ** max(len(turn_rewards) - 1, 0)
