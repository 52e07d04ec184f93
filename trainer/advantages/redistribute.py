"""TreeAdv-style credit: the advantages of the leaves, aggregated over the segments they share.

arXiv 2601.03703: A_i = (R_i - mean R) / std R over all leaves of the prompt's forest (`leaf_group`), and a token of a
shared segment gets an aggregate of the advantages of the leaves below it. Since the paper's aggregate could not be
determined, it is a setting:

    mean:  A(s) = (1 / |L(s)|) sum of A_i       the average over the leaves below the segment (the default)
    sum:   A(s) = sum of A_i                    grows with the number of leaves below the segment
    sqrt:  A(s) = (1 / sqrt |L(s)|) sum of A_i  the weight of TreeRL (arXiv 2506.11902), which keeps the variance

over the leaves L(s) below s that have a reward. A leaf segment keeps its own A_i in all three. With the mean, the root
segment of a single tree gets 0.

If each shared token enters the loss once, the mean gives the gradient of plain GRPO on the same leaves, with each
shared token's part divided by the number of leaves below it. If it enters once per leaf, the mean gives the gradient of
plain GRPO itself, provided that nothing is clipped and no row is normalised by its own length.
"""

from __future__ import annotations

import math

from trainer.tree import Tree

AGGREGATIONS = ("mean", "sum", "sqrt")


def redistribute(tree: Tree, leaf_values: dict[int, float], aggregation: str = "mean") -> list[float]:
    """One advantage per node.

    Args:
        tree: the forest of one prompt.
        leaf_values: leaf node -> its advantage; leaves that are missing or NaN are ignored.
        aggregation: one of `AGGREGATIONS`.

    Returns:
        One value per node, 0 where no leaf below it has a value.

    >>> from trainer.tree import Node, PROMPT
    >>> tree = Tree("p", [Node(PROMPT, "segment", [1]), Node(0, "segment", [2]), Node(0, "segment", [3])])
    >>> redistribute(tree, {1: 1.5, 2: -0.5})
    [0.5, 1.5, -0.5]
    """
    below: list[list[float]] = [[] for _ in tree.nodes]
    for leaf, value in leaf_values.items():
        if not math.isnan(value):
            for node in tree.path(leaf):
                below[node].append(value)
    return [_aggregate(values, aggregation) for values in below]


def _aggregate(values: list[float], aggregation: str) -> float:
    if not values:
        return 0.0
    divisor = {"mean": len(values), "sum": 1, "sqrt": math.sqrt(len(values))}[aggregation]
    return math.fsum(values) / divisor
