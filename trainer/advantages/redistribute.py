"""TreeAdv-style credit: the leaves' advantages, handed up to the segments they share.

arXiv 2601.03703: A_i = (R_i - mean R) / std R over all leaves of the prompt's forest (`leaf_group`), and a token of a
shared segment gets an aggregate of the advantages of the leaves below it. Which aggregate was not to be found, so it
has a name:

    mean:  A(s) = (1 / |L(s)|) sum of A_i       a segment is worth what the average leaf below it is (the default)
    sum:   A(s) = sum of A_i                    and as much more as leaves hang on it
    sqrt:  A(s) = (1 / sqrt |L(s)|) sum of A_i  the weight of TreeRL (arXiv 2506.11902), which keeps the variance

over the leaves L(s) below s that have a reward. A leaf segment keeps its own A_i in all three. With the mean, the root
segment of a forest of one tree has 0. Counted once, the mean is the gradient of plain GRPO on the same leaves with each
shared token's divided by the number of leaves below it; counted once a leaf it is that of plain GRPO itself, as long as
nothing is clipped and no row is normalised by its own length.
"""

from __future__ import annotations

import math

from trainer.tree import Tree

AGGREGATIONS = ("mean", "sum", "sqrt")


def redistribute(tree: Tree, leaf_values: dict[int, float], aggregation: str = "mean") -> list[float]:
    """One advantage a node.

    Args:
        tree: the forest of one prompt.
        leaf_values: leaf node -> its advantage; a leaf that is missing or NaN abstains.
        aggregation: one of `AGGREGATIONS`.

    Returns:
        A value for each node, 0 where no leaf below has one.

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
