"""Tree-GRPO: a leaf is compared with the leaves of its own tree and with all leaves of its prompt.

arXiv 2509.21240, equations 6 and 7. With R_i the reward of leaf i:

    A_intra(i) = (R_i - mean R over i's tree)   / std R over i's tree
    A_inter(i) = (R_i - mean R over the prompt) / std R over the prompt
    A(i)       = A_intra(i) + A_inter(i)

The paper does not specify the std; the released code uses the sample std plus 1e-6. Here: sample std plus 1e-4, as
everywhere (`standardise`). A tree of one leaf has intra part 0 (the released code gives it its raw reward). Every token
on a leaf's path carries the leaf's value. The intra parts of a tree sum to 0, so a token shared by all of its leaves
learns from the inter part alone.
"""

from __future__ import annotations

import numpy as np

from trainer.advantages.groups import standardise

PARTS = ("intra_inter", "inter", "intra")


def intra_inter(rewards, prompts, trees, advantage: str = "intra_inter", scale: str = "group") -> np.ndarray:
    """(N,) advantages of N leaves; 0 for a leaf without reward (NaN).

    Args:
        rewards: (N,) one reward per leaf, NaN for a leaf without.
        prompts: (N,) prompt group id of each leaf.
        trees: (N,) tree id of each leaf, unique over all prompts.
        advantage: the sum ("intra_inter") or one part alone. In the paper's Table 4, intra alone collapses with small
            trees; inter alone is plain GRPO on the leaves.
        scale: of both parts, see `standardise`.

    >>> intra_inter([1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]).round(3).tolist()
    [2.207, -1.207, -0.5, -0.5]
    """
    assert advantage in PARTS, advantage
    inter = standardise(rewards, prompts, scale) if advantage != "intra" else 0.0
    intra = standardise(rewards, trees, scale) if advantage != "inter" else 0.0
    return intra + inter
