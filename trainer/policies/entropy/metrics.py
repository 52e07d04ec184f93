"""Metrics of forks: how many, how deep, how uncertain the model was, how many tokens they saved."""

from __future__ import annotations

from trainer.tree import PROMPT, Tree


def forks(tree: Tree) -> dict[int, list[int]]:
    """Node -> its children, for nodes with two or more."""
    children: dict[int, list[int]] = {}
    for i, node in enumerate(tree.nodes):
        if node.parent != PROMPT:
            children.setdefault(node.parent, []).append(i)
    return {node: below for node, below in children.items() if len(below) > 1}


def fork_sums(trees: list[Tree], num_trees: int) -> dict[str, tuple[float, float]]:
    """Name -> (sum, count) over the trees of one process, failed ones left out.

    fork/count and fork/filled: forks per prompt, and chains per prompt that fill up the leaves that no fork added;
    fork/depth: tokens from the prompt to a fork; fork/entropy: of the distribution that a fork's children were sampled
    from, in nats; fork/saved: 1 - tokens generated / tokens of the leaves as separate chains; fork/distinct: distinct
    leaves / leaves.
    """
    grown = [tree for tree in trees if tree.nodes[0].status != "failed"]
    found = [(tree, node, below) for tree in grown for node, below in forks(tree).items()]
    leaves = [(tree, leaf) for tree in grown for leaf in tree.leaves()]
    flat = sum(len(tree.tokens(leaf)) for tree, leaf in leaves)
    roots = sum(node.parent == PROMPT for tree in grown for node in tree.nodes)
    return {
        "fork/count": (len(found), len(grown)),
        "fork/filled": (roots - num_trees * len(grown), len(grown)),
        "fork/depth": (sum(len(tree.tokens(node)) for tree, node, _ in found), len(found)),
        "fork/entropy": (sum(tree.nodes[below[0]].entropies[0] for tree, _, below in found), len(found)),
        "fork/saved": (flat - sum(tree.unique_tokens() for tree in grown), flat),
        "fork/distinct": (sum(len({tuple(t.tokens(leaf)) for leaf in t.leaves()}) for t in grown), len(leaves)),
    }


def mixed_siblings(tree: Tree, rewards: dict[int, float]) -> tuple[float, float]:
    """(forks whose children differ in mean reward, all forks) of one tree: only the former give a learning signal.

    Args:
        rewards: leaf node -> reward, without leaves that abstain. A fork with fewer than two scored children is not
            counted.
    """
    above: dict[int, list[float]] = {}
    for leaf, reward in rewards.items():
        for node in tree.path(leaf):
            above.setdefault(node, []).append(reward)
    means = [
        [sum(above[child]) / len(above[child]) for child in below if child in above] for below in forks(tree).values()
    ]
    scored = [values for values in means if len(values) > 1]
    return sum(max(values) - min(values) > 1e-6 * max(1.0, *map(abs, values)) for values in scored), len(scored)
