"""The value of a turn from the turns that follow it: the credit of AT2PO.

arXiv 2601.04767, over the tree of turns of one prompt. With V(leaf) the advantage of the leaf's reward among the leaves
of the prompt (`leaf_group`), and H(c) the mean of -log p over the sampled tokens of turn c, in nats:

    V(n) = sum over the turns c that follow n of w(c) * V(c),    w = softmax of their H
    A(n) = V(n) - baseline

The baseline is 0 (the paper's choice), V of the turn before n, or V of the prompt. The paper also tries the sum of the
three, which is not offered. Uncertain turns weigh more in the value of the turn before them: with that value as the
baseline, the sum of w(c) * A(c) over the turns that follow the same turn is 0.
"""

from __future__ import annotations

import math

import numpy as np

from trainer.tree import PROMPT, Tree

BASELINES = ("none", "parent", "prompt")


def turn_value(tree: Tree, leaf_values: dict[int, float], baseline: str = "none") -> list[float]:
    """One advantage per node.

    Args:
        tree: turns ("step") and observations of one prompt; sampled nodes have log-probs.
        leaf_values: leaf node -> its value, NaN where it has no reward; such a leaf enters no mean.
        baseline: one of `BASELINES`.

    Returns:
        One value per node, 0 where no leaf below it has a value; an observation has that of its turn.

    >>> from trainer.tree import Node
    >>> tree = Tree("p", [Node(PROMPT, "step", [1], logprobs=[-1.0]),
    ...                   Node(0, "observation", [2], sampled=False),
    ...                   Node(1, "step", [3], logprobs=[-0.5]), Node(1, "step", [4], logprobs=[-0.5])])
    >>> turn_value(tree, {2: 1.0, 3: 0.0})
    [0.5, 0.5, 1.0, 0.0]
    >>> turn_value(tree, {2: 1.0, 3: 0.0}, "parent")
    [0.0, 0.0, 0.5, -0.5]
    """
    assert baseline in BASELINES, baseline
    values = [leaf_values.get(i, math.nan) for i in range(len(tree.nodes))]
    below: dict[int, list[int]] = {}
    for i in reversed(range(len(tree.nodes))):  # children come after their parents
        if i in below:
            values[i] = _mean(tree, below[i], values)
        if not math.isnan(values[i]):
            below.setdefault(tree.nodes[i].parent, []).append(i)
    if not below:
        return [0.0] * len(tree.nodes)
    of_prompt = _mean(tree, below[PROMPT], values)
    if baseline == "none":
        subtracted = [0.0] * len(tree.nodes)
    elif baseline == "prompt":
        subtracted = [of_prompt] * len(tree.nodes)
    else:
        subtracted = _values_before(tree, values, of_prompt)
    return [0.0 if math.isnan(v) else v - minus for v, minus in zip(values, subtracted, strict=True)]


def _mean(tree: Tree, nodes: list[int], values: list[float]) -> float:
    """The mean of the values of siblings, weighted by the softmax of their mean surprisal."""
    surprisals = np.array([-np.mean(tree.nodes[i].logprobs) if tree.nodes[i].sampled else 0.0 for i in nodes])
    weights = np.exp(surprisals - surprisals.max())
    return float(weights @ [values[i] for i in nodes] / weights.sum())


def _values_before(tree: Tree, values: list[float], of_prompt: float) -> list[float]:
    """For each turn and its observation, the value of the turn before it."""
    before: list[float] = []
    for node in tree.nodes:
        if node.kind == "observation":
            before.append(before[node.parent])
        else:
            before.append(of_prompt if node.parent == PROMPT else values[node.parent])
    return before
