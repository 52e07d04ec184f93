"""The forest that is worked out by hand: two trees, five leaves, three segments that leaves share."""

from trainer.tree import PROMPT, Node, Tree

# node: (parent, tree of the forest, tokens, reward of a leaf)
NODES = [
    (PROMPT, 0, [301, 302, 303], None),
    (PROMPT, 1, [311, 312], None),
    (0, 0, [321, 322], 1.0),
    (0, 0, [331, 332], None),
    (3, 0, [341], 1.0),
    (3, 0, [351, 352, 353], 0.0),
    (1, 1, [361, 362, 363, 364], 0.0),
    (1, 1, [371], 0.0),
]
LEAVES = [2, 4, 5, 6, 7]
BELOW = {0: [2, 4, 5], 1: [6, 7], 3: [4, 5]}
# Rewards 1, 1, 0, 0, 0: mean 0.4, sample standard deviation sqrt(0.3).
RIGHT, WRONG = 0.6 / (0.3**0.5 + 1e-4), -0.4 / (0.3**0.5 + 1e-4)
OWN = {2: RIGHT, 4: RIGHT, 5: WRONG, 6: WRONG, 7: WRONG}
SHARED = {
    "mean": {0: (2 * RIGHT + WRONG) / 3, 1: WRONG, 3: (RIGHT + WRONG) / 2},
    "sum": {0: 2 * RIGHT + WRONG, 1: 2 * WRONG, 3: RIGHT + WRONG},
    "sqrt": {0: (2 * RIGHT + WRONG) / 3**0.5, 1: 2**0.5 * WRONG, 3: (RIGHT + WRONG) / 2**0.5},
}


def forest(prompt_id: str = "p") -> Tree:
    tree = Tree(prompt_id)
    for parent, group, ids, _ in NODES:
        tree.add(Node(parent, "segment", ids, True, [-1.0] * len(ids), [0.5] * len(ids), group=group))
    return tree


def forest_reward(completion_ids, **kwargs):
    """The rewards of the hand-made forest, by the completion's tokens."""
    tree = forest()
    rewards = {tuple(tree.tokens(leaf)): NODES[leaf][3] for leaf in LEAVES}
    return [rewards[tuple(ids)] for ids in completion_ids]
