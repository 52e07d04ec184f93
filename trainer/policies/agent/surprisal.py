"""AT2PO's rollout (arXiv 2601.04767): agent chains, then rounds of branches after the turns of highest surprisal.

The score of a turn that is not a leaf is the mean of -log p over its sampled tokens, in nats, minus a penalty for each
of its siblings, the other turns that start at the same point. A round branches after the turns of highest score in all
trees of the prompt. If there are fewer turns than branches, turns branch again in the same order; if there are none,
new chains start at the prompt. So every prompt has chains + rounds * branches leaves. (The released code repeats the
last leaf instead.)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np

from trainer.policies.agent.step import branch_points
from trainer.tree import PROMPT, Tree


@dataclass(frozen=True)
class SurprisalShape:
    """Numbers of chains, of branches per round and of rounds; the same interface as `TreeShape`.

    Attributes:
        trees: chains that start at the prompt.
        branches: branches per prompt and round.
        sibling_penalty: nats per sibling.
    """

    trees: int
    branches: int
    rounds: int
    sibling_penalty: float
    temperature = top_k = None  # branches are sampled like the chains

    @property
    def leaves(self) -> int:
        return self.trees + self.rounds * self.branches

    @property
    def of_branches(self) -> dict:
        return {}

    def chosen(self, tree: Tree) -> list[tuple[int, int | None]]:
        """(node to branch after, group) of each branch of a round; the node is `PROMPT` for a new chain."""
        siblings = Counter(node.parent for node in tree.nodes)
        scores = {}
        for place in branch_points(tree):
            turn = tree.nodes[tree.nodes[place].parent]
            scores[place] = surprisal(turn) - self.sibling_penalty * (siblings[turn.parent] - 1)
        best = sorted(scores, key=scores.get, reverse=True)  # the earlier of equals first
        if best:
            return [(place, tree.nodes[place].group) for place in islice(cycle(best), self.branches)]
        return [(PROMPT, None)] * self.branches


def surprisal(turn) -> float:
    """Mean of -log p over a node's sampled tokens, in nats."""
    return -float(np.mean(turn.logprobs))
