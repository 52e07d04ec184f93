"""A forest of chains that fork where the model is unsure: TreeAdv-style rollouts (arXiv 2601.03703).

The paper forks at tokens whose sampling entropy exceeds a preset threshold and grows a forest of such trees for each
prompt. It was read second-hand: its threshold, the number of trees, the branch factor, the gap between forks, the leaf
budget and the order in which the budget is spent are our choices here, each an argument.

Tokens are looked at in order of depth, those of one depth in order of entropy, and each that qualifies forks while the
budget of leaves lasts. Whether a token forks depends on nothing below it, so the two timings give the same trees in
distribution: `online` forks while decoding and computes nothing twice; `retrospective` lets chains end first, then goes
back to the next fork in order of depth, and feeds one token again for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from trainer.policies.entropy.metrics import fork_sums, mixed_siblings
from trainer.policies.entropy.rules import ForkRule, OpenText
from trainer.policies.entropy.threshold import remember, top_share
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch, Segment, Split
from trainer.tree import PROMPT, Tree

TIMINGS = ("online", "retrospective")


class EntropyPolicy(Policy):
    """`num_trees` seed chains fork until a prompt has `num_generations` leaves; fresh chains make up what is missing.

    Args:
        num_trees: seed chains a prompt.
        num_generations: leaves a prompt, at least `num_trees`.
        max_tokens: of a completion.
        rule: which tokens fork.
        text: where the text allows it.
        min_gap: the fewest tokens between two forks of a path, and before its first.
        branch_factor: children of a fork, the chain's own continuation among them; the last fork may have fewer.
        distinct: the first tokens of siblings differ.
        timing: `online` or `retrospective`.
        share: of the tokens whose scores give the next generation its threshold; None: the threshold is fixed.
        memory: where the running threshold is kept (`fork_threshold.remember`).
    """

    expands = splits = True

    def __init__(
        self,
        num_trees: int,
        num_generations: int,
        max_tokens: int,
        rule: ForkRule,
        text: OpenText,
        min_gap: int = 16,
        branch_factor: int = 2,
        distinct: bool = True,
        timing: str = "online",
        share: float | None = None,
        memory: dict | None = None,
    ):
        assert 1 <= num_trees <= num_generations and min_gap >= 1 and branch_factor >= 2 and timing in TIMINGS
        self.num_trees, self.leaves, self.max_tokens = num_trees, num_generations, max_tokens
        self.rule, self.text, self.min_gap, self.branch_factor = rule, text, min_gap, branch_factor
        self.distinct, self.online = distinct, timing == "online"
        self.share, self.memory = share, {} if memory is None else memory
        self._growth: dict[int, _Growth] = {}

    def start(self) -> Segment:
        return Segment("segment", self.num_trees, self.max_tokens)

    def candidates(self, entropies, logprobs):
        # Retrospective forks wait for `expand`; comparing with itself keeps this file free of torch.
        return self.rule.candidates(entropies, logprobs) if self.online else entropies != entropies

    def split(self, tree: Tree, node_index: int, token_ids: list[int], entropy: float, logprob: float) -> Split | None:
        growth, at = self._of(tree), len(token_ids) - 1
        if not growth.room or not self._forks(tree, node_index, token_ids, at, entropy, logprob):
            return None
        return Split(1 + growth.take(self.branch_factor - 1), self.distinct)

    def expand(self, tree: Tree) -> list[Branch]:
        growth = self._of(tree)
        branches = [] if self.online else self._next_forks(tree, growth)
        if branches or not growth.room:
            return branches
        roots = sum(node.parent == PROMPT for node in tree.nodes)
        fill = range(roots, roots + growth.take(growth.room))
        return [Branch(PROMPT, Segment("segment", 1, self.max_tokens, group=group)) for group in fill]

    def metrics(self, trees: list[Tree]) -> dict[str, tuple[float, float]]:
        """`fork_sums`, the threshold in use, and the one these trees would ask for (`fork/measured`)."""
        sums = fork_sums(trees, self.num_trees) | {"fork/threshold": (self.rule.threshold, 1)}
        if self.share is not None:
            measured = top_share(trees, self.rule, self.text, self.share)
            sums["fork/measured"] = (0.0, 0) if math.isnan(measured) else (measured, 1)
        return sums

    def reward_sums(self, trees: list[Tree], rewards: list[dict[int, float]]) -> dict[str, tuple[float, float]]:
        """fork/mixed: share of forks whose children differ in mean reward; NaN rewards abstain."""
        known = [{leaf: value for leaf, value in found.items() if not math.isnan(value)} for found in rewards]
        pairs = [mixed_siblings(tree, found) for tree, found in zip(trees, known, strict=True)]
        return {"fork/mixed": (sum(mixed for mixed, _ in pairs), sum(count for _, count in pairs))}

    def remember(self, metrics: dict[str, float]) -> None:
        """Takes the metrics of all processes, so that every one uses the same threshold in the next generation."""
        self.memory["fork_generation"] = self.memory.get("fork_generation", 0) + 1
        if self.share is not None:
            remember(self.memory, self.rule.name, metrics["fork/measured"])

    def _of(self, tree: Tree) -> _Growth:
        """What was spent on a tree. It holds the tree, so that the key stays the tree's own."""
        return self._growth.setdefault(id(tree), _Growth(tree, self.leaves - self.num_trees))

    def _forks(self, tree: Tree, index: int, token_ids: list[int], at: int, entropy: float, logprob: float) -> bool:
        """Whether a fork comes before token `at` of a node, given its tokens so far; fill-up chains never fork."""
        node = tree.nodes[index]
        if at < self.min_gap or node.group >= self.num_trees:
            return False
        before = tree.tokens(node.parent) + token_ids[:at]
        name, path = f"{tree.prompt_id} {node.group}", [*before, token_ids[at]]
        return self.rule.forks(entropy, logprob, name, path) and self.text.allows(before)

    def _next_forks(self, tree: Tree, growth: _Growth) -> list[Branch]:
        """The forks of the smallest depth that is left, the higher entropy first, within the budget."""
        if not growth.room:
            return []
        found = sorted(place for leaf in tree.leaves() for place in self._first_fork(tree, leaf, growth.depth))
        branches = []
        for depth, _, leaf, at in found:
            if depth == found[0][0] and growth.room:
                growth.depth, count = depth, growth.take(self.branch_factor - 1)
                segment = Segment("segment", count, self.max_tokens - depth, distinct=self.distinct)
                branches.append(Branch(leaf, segment, at))
        return branches

    def _first_fork(self, tree: Tree, leaf: int, done: int) -> Iterator[tuple[int, float, int, int]]:
        """(depth, minus entropy, leaf, tokens before it in the leaf's node) of a leaf's first fork below depth `done`.

        Only leaves have such places: other nodes end at forks, which were made in order of depth.
        """
        node = tree.nodes[leaf]
        above = len(tree.tokens(node.parent))
        for at in range(max(self.min_gap, done + 1 - above), len(node.token_ids)):
            if self._forks(tree, leaf, node.token_ids, at, node.entropies[at], node.logprobs[at]):
                yield above + at, -node.entropies[at], leaf, at
                return


class _Growth:
    """What a tree has left: leaves to come, and the depth down to which retrospective forks were made."""

    def __init__(self, tree: Tree, room: int):
        self.tree, self.room, self.depth = tree, room, -1

    def take(self, count: int) -> int:
        """Takes up to `count` leaves of the budget, and says how many."""
        taken = min(count, self.room)
        self.room -= taken
        return taken
