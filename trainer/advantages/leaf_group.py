"""Plain GRPO: one advantage per completion, standardised over all completions of its prompt.

DeepSeekMath (arXiv 2402.03300), outcome supervision: A_i = (R_i - mean R) / std R over the G completions of a prompt.
Sample std and epsilon 1e-4, as in TRL. `scale` "none" is the advantage of Dr. GRPO (arXiv 2503.20783).
"""

from __future__ import annotations

import numpy as np

from trainer.advantages.groups import standardise


def leaf_group(rewards, prompts, scale: str = "group") -> np.ndarray:
    """(N,) advantages of N leaves.

    Args:
        rewards: (N,) one reward per leaf, NaN for a leaf without.
        prompts: (N,) prompt group id of each leaf; leaves may come in any order.
        scale: see `standardise`.

    >>> leaf_group([1, 0, 0, 0], [7, 7, 7, 7]).round(3).tolist()
    [1.5, -0.5, -0.5, -0.5]
    """
    return standardise(rewards, prompts, scale)
