"""A few lines of engine for policies that fork: grows trees by the contract of trainer/policies/policy.py."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np

from trainer.policies.segment import Segment
from trainer.tree import PROMPT, Node, Tree

EOS = 0


@dataclass(eq=False)
class Row:
    tree: Tree
    node: int
    room: int
    token_ids: list[int] = field(default_factory=list)
    stats: list[tuple[float, float]] = field(default_factory=list)  # log-probability and entropy of each
    taken: list[int] | None = None  # first tokens of its siblings, if they must differ


class ScriptedEngine:
    """Samples from `distribution(path) -> {token: probability}`, where path is the completion so far, a tuple."""

    def __init__(self, distribution, seed: int = 0):
        self.distribution, self.random = distribution, random.Random(seed)
        self.generated = 0

    def grow(self, policy, prompt_ids) -> list[Tree]:
        self.policy = policy
        return [self._grow(Tree(prompt_id)) for prompt_id in prompt_ids]

    def _grow(self, tree: Tree) -> Tree:
        rows = self._children(tree, PROMPT, self.policy.start())
        while rows:
            for row in rows:
                self._draw(row)
            rows += self._split(rows) if self.policy.splits else []
            rows = [after for row in rows for after in self._finish(row)]
            if not rows and self.policy.expands:
                branches = self.policy.expand(tree)
                rows = [row for branch in branches for row in self._children(tree, branch.node, branch.segment)]
        return tree

    def _finish(self, row: Row) -> list[Row]:
        """The row, or, if its node ended, what follows."""
        ended = "eos" if row.token_ids[-1] == EOS else "length" if len(row.token_ids) == row.room else None
        if ended is None:
            return [row]
        self._close(row, "length" if ended == "length" else "ok")
        segment = self.policy.next(row.tree, row.node, ended)
        return [] if segment is None else self._children(row.tree, row.node, segment)

    def _children(self, tree: Tree, parent: int, segment: Segment) -> list[Row]:
        roots = sum(node.parent == PROMPT for node in tree.nodes)
        groups = [tree.nodes[parent].group] * segment.count if parent != PROMPT else range(roots, roots + segment.count)
        groups = groups if segment.group is None else [segment.group] * segment.count
        nodes = [tree.add(Node(parent, segment.kind, group=group)) for group in groups]
        return [Row(tree, node, segment.max_tokens) for node in nodes]

    def _draw(self, row: Row) -> None:
        weights = self.distribution((*row.tree.tokens(row.tree.nodes[row.node].parent), *row.token_ids))
        taken = row.taken if row.taken is not None and not row.token_ids else []
        left = {token: p for token, p in weights.items() if token not in taken and p > 0} or weights
        token = self.random.choices(list(left), list(left.values()))[0]
        taken.append(token)
        row.token_ids.append(token)
        row.stats.append((math.log(weights[token]), -sum(p * math.log(p) for p in weights.values() if p > 0)))
        self.generated += 1

    def _split(self, rows: list[Row]) -> list[Row]:
        logprobs, entropies = np.array([row.stats[-1] for row in rows]).T
        children = []
        asked = self.policy.candidates(entropies, logprobs)
        for i in np.argsort(-entropies, kind="stable"):
            row = rows[i]
            if asked[i] and (split := self._ask(row, entropies[i], logprobs[i])):
                assert len(row.token_ids) > 1
                children += self._fork(row, split)
        return children

    def _ask(self, row: Row, entropy: float, logprob: float):
        return self.policy.split(row.tree, row.node, row.token_ids, entropy, logprob)

    def _fork(self, row: Row, split) -> list[Row]:
        token, stats = row.token_ids.pop(), row.stats.pop()
        self._close(row, "ok")
        segment = Segment("segment", split.count, row.room - len(row.token_ids))
        first, *others = self._children(row.tree, row.node, segment)
        row.node, row.room, row.token_ids, row.stats = first.node, first.room, [token], [stats]
        taken = [token]
        for other in others:
            other.taken = taken if split.distinct else None
            self._draw(other)
        return others

    def _close(self, row: Row, status: str) -> None:
        node = row.tree.nodes[row.node]
        node.token_ids, node.status = list(row.token_ids), status
        node.logprobs, node.entropies = ([stats[k] for stats in row.stats] for k in (0, 1))
