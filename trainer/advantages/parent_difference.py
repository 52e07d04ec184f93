"""The value of a segment minus the value of its parent: the credit of SPO-tree, TreeRPO and VinePPO.

SPO (arXiv 2505.23564), for a tree of segments whose leaves are complete rollouts:

    V(leaf)  = R of the leaf
    V(node)  = mean of V over its children
    V(prompt) = mean of V over the first segments
    A(node)  = V(node) - V(parent)

Siblings have advantages that sum to 0, and the advantages on a path sum to R of the leaf minus V(prompt). TreeRPO
subtracts the mean of the siblings, which is V(parent) here. VinePPO estimates V by rollouts that are not trained on.

Advantages are linear in the rewards, and a constant added to all rewards of a prompt cancels: the leaves' values may be
rewards or `leaf_group` advantages, whose divisor (none, by default) is then the segments'.
"""

from __future__ import annotations

import math

import numpy as np

from trainer.tree import PROMPT, Tree


def parent_difference(tree: Tree, leaf_values: dict[int, float]) -> list[float]:
    """One advantage per node.

    Args:
        tree: the forest of one prompt.
        leaf_values: leaf node -> its value; leaves that are missing or NaN enter no mean.

    Returns:
        One value per node, 0 where no leaf below it has a value.

    >>> from trainer.tree import Node
    >>> tree = Tree("p", [Node(PROMPT, "segment", [1]), Node(PROMPT, "segment", [2]),
    ...                   Node(0, "segment", [3]), Node(0, "segment", [4])])
    >>> parent_difference(tree, {1: 0.0, 2: 1.0, 3: 0.0})
    [0.25, -0.25, 0.5, -0.5]
    """
    values = [leaf_values.get(i, math.nan) for i in range(len(tree.nodes))]
    below: dict[int, list[float]] = {}
    for i in reversed(range(len(tree.nodes))):  # children come after their parents
        if i in below:
            values[i] = float(np.mean(below[i]))
        if not math.isnan(values[i]):
            below.setdefault(tree.nodes[i].parent, []).append(values[i])
    parents = {PROMPT: float(np.mean(below[PROMPT])) if below else 0.0} | dict(enumerate(values))
    return [
        0.0 if math.isnan(value) else value - parents[node.parent]
        for node, value in zip(tree.nodes, values, strict=True)
    ]
