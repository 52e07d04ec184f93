"""Group statistics by explicit ids, in float64. NaN means no reward: it enters no mean and gets advantage 0."""

from __future__ import annotations

import numpy as np

from task.errors import UserError

SCALES = ("group", "batch", "none")
EPSILON = 1e-4  # TRL's; the papers name neither the epsilon nor which standard deviation they use


def standardise(values, groups, scale: str = "group") -> np.ndarray:
    """(value - mean of its group) / (sample std + 1e-4), for values in any order.

    Args:
        values: (N,) floats; NaN for a row without reward.
        groups: (N,) group ids, integers or strings; members of a group need not be adjacent.
        scale: the values whose sample std divides: those of the group, or all N of the batch; "none": nothing divides
            (Dr. GRPO, arXiv 2503.20783). The names are TRL's, for `scale_rewards`.

    Returns:
        (N,) float64. Exactly 0 where the value is NaN, the group has one member, or the group's spread counts as zero:
        its std is below 1e-6 * max(1, max |value|) (equal float32 rewards are not always equal in float64).

    >>> standardise([1, 5, 3], ["a", "b", "a"]).round(3).tolist()
    [-0.707, 0.0, 0.707]
    >>> standardise([1, 5, 3], ["a", "b", "a"], "none").tolist()
    [-1.0, 0.0, 1.0]
    """
    assert scale in SCALES, scale
    values = np.asarray(values, dtype=np.float64)
    if np.isinf(values).any():
        raise UserError(f"reward {values[np.isinf(values)][0]} is not finite: a reward must be a finite number or None")
    out = np.zeros_like(values)
    over_all = sample_std(values[~np.isnan(values)])
    _, index = np.unique(np.asarray(groups), return_inverse=True)
    for group in range(index.max(initial=-1) + 1):
        members = np.flatnonzero((index == group) & ~np.isnan(values))
        spread = sample_std(values[members])
        if spread > 0:
            divisor = {"group": spread + EPSILON, "batch": over_all + EPSILON, "none": 1.0}[scale]
            out[members] = (values[members] - values[members].mean()) / divisor
    return out


def sample_std(values: np.ndarray) -> float:
    """Sample standard deviation (ddof 1); 0.0 for fewer than two values or a spread within rounding error."""
    if len(values) < 2:
        return 0.0
    std = float(values.std(ddof=1))
    return std if std >= 1e-6 * max(1.0, float(np.abs(values).max())) else 0.0
