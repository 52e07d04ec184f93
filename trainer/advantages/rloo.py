"""RLOO: a completion against the mean reward of the other completions of its prompt.

arXiv 2402.14740, over the G completions of a prompt:

    A_i = R_i - 1 / (G - 1) * sum of R_j over j != i  =  G / (G - 1) * (R_i - mean R)

The paper divides by no standard deviation (`scale` "none").
"""

from __future__ import annotations

import numpy as np

from trainer.advantages.groups import standardise


def rloo(rewards, prompts, scale: str = "none") -> np.ndarray:
    """(N,) advantages of N leaves; 0 for a leaf without reward (NaN) and for the only one of its prompt.

    Args:
        rewards: (N,) one reward per leaf, NaN for a leaf without.
        prompts: (N,) prompt group id of each leaf; leaves may come in any order.
        scale: see `standardise`.

    >>> rloo([1, 0, 0, 0], [7, 7, 7, 7]).round(3).tolist()
    [1.0, -0.333, -0.333, -0.333]
    """
    scored = ~np.isnan(np.asarray(rewards, dtype=np.float64))
    _, group = np.unique(np.asarray(prompts), return_inverse=True)
    size = np.bincount(group, weights=scored)[group]
    return standardise(rewards, prompts, scale) * size / np.maximum(size - 1, 1)
