"""REINFORCE++: rewards normalised over the whole batch, with or without the mean of the prompt as a baseline.

arXiv 2501.03262. With mean and std over all completions of the batch (a generation, over all processes):

    REINFORCE++:           A_i = (R_i - mean R) / std R
    REINFORCE++-baseline:  D_i = R_i - mean R over the completions of i's prompt,  A_i = (D_i - mean D) / std D

Sample std and epsilon 1e-4, as everywhere (`standardise`). Unlike `leaf_group` with scale "batch", which divides by the
std of the rewards, the second form divides by that of the differences D, which does not grow with the differences
between prompts. In the first form a prompt whose rewards are all equal has advantages too: it is better or worse than
the other prompts.
"""

from __future__ import annotations

import numpy as np

from trainer.advantages.groups import standardise

BASELINES = ("batch", "prompt")


def reinforce_plus_plus(rewards, prompts, baseline: str = "batch", scale: str = "batch") -> np.ndarray:
    """(N,) advantages of N leaves; 0 for a leaf without reward (NaN).

    Args:
        rewards: (N,) one reward per leaf, NaN for a leaf without.
        prompts: (N,) prompt group id of each leaf; leaves may come in any order.
        baseline: one of `BASELINES`, whose mean reward is subtracted.
        scale: "batch" divides by the std over the batch, "none" by nothing.

    >>> reinforce_plus_plus([1, 0, 1, 1], [0, 0, 1, 1]).round(2).tolist()
    [0.5, -1.5, 0.5, 0.5]
    >>> reinforce_plus_plus([1, 0, 1, 1], [0, 0, 1, 1], "prompt").round(2).tolist()
    [1.22, -1.22, 0.0, 0.0]
    """
    assert baseline in BASELINES, baseline
    values = np.asarray(rewards, dtype=np.float64)
    if baseline == "prompt":
        values = np.where(np.isnan(values), np.nan, standardise(values, prompts, "none"))
    return standardise(values, np.zeros(len(values)), scale)
