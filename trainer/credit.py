"""From one advantage a leaf to one value a completion token, where inner nodes have values of their own."""

# B rows of a process

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainer.rollout import Rollout


def leaf_values(rollout: Rollout, row_values: Sequence[float]) -> list[dict[int, float]]:
    """{leaf node: value} of each tree, from one value a row; rows that repeat a leaf have the same."""
    found: list[dict[int, float]] = [{} for _ in rollout.trees]
    for row, (tree, leaf) in enumerate(zip(rollout.row_tree, rollout.row_leaf, strict=True)):
        found[tree][leaf] = float(row_values[row])
    return found


def token_values(rollout: Rollout, leaf_advantages: Sequence[float], node_values: Callable) -> list[list[float]]:
    """A list a row, one value a completion token: the value of the node that owns the token.

    Args:
        leaf_advantages: (B,) advantage of each row.
        node_values: (tree, {leaf node: advantage}) -> one value a node of the tree.
    """
    leaves = leaf_values(rollout, leaf_advantages)
    values = [node_values(tree, found) for tree, found in zip(rollout.trees, leaves, strict=True)]
    return [rollout.spread(row, values[tree]) for row, tree in enumerate(rollout.row_tree)]
