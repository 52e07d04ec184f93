"""A forest of chains that fork where the model is uncertain: TreeAdv-style rollouts (arXiv 2601.03703).

The paper forks at tokens whose sampling entropy exceeds a preset threshold and grows a forest of such trees for each
prompt. We know it only second-hand: the threshold, the number of trees, the branch factor, the gap between forks, the
budget of leaves and the order in which it is spent are our choices; all but the last are arguments.

Chains fork while they are decoded, so nothing is computed twice. Tokens are considered by increasing depth, and at
equal depth by decreasing entropy; each that qualifies forks until the budget of leaves is spent.
"""

from __future__ import annotations

import math

from trainer.policies.entropy.metrics import fork_sums, mixed_siblings
from trainer.policies.entropy.rules import ForkRule, OpenText
from trainer.policies.entropy.threshold import remember, top_share
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch, Segment, Split
from trainer.tree import PROMPT, Tree


class EntropyPolicy(Policy):
    """`num_trees` seed chains fork until a prompt has `num_generations` leaves; new chains add any that are missing.

    Args:
        num_trees: seed chains per prompt.
        num_generations: leaves per prompt, at least `num_trees`.
        max_tokens: per completion.
        rule: which tokens fork.
        text: where the text allows a fork.
        min_gap: minimum tokens between two forks of a path, and before its first.
        branch_factor: children per fork, the continued chain included; the last fork may have fewer.
        distinct: siblings start with different tokens.
        share: top share of tokens, whose lowest score is the next generation's threshold; None: the threshold is fixed.
        memory: where the running threshold is stored (`threshold.remember`).
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
        share: float | None = None,
        memory: dict | None = None,
    ):
        assert 1 <= num_trees <= num_generations and min_gap >= 1 and branch_factor >= 2
        self.num_trees, self.leaves, self.max_tokens = num_trees, num_generations, max_tokens
        self.rule, self.text, self.min_gap, self.branch_factor = rule, text, min_gap, branch_factor
        self.forked_by = rule.name
        self.distinct = distinct
        self.share, self.memory = share, {} if memory is None else memory
        self._budgets: dict[int, _Budget] = {}

    def start(self) -> Segment:
        return Segment("segment", self.num_trees, self.max_tokens)

    def candidates(self, entropies, logprobs):
        return self.rule.candidates(entropies, logprobs)

    def split(self, tree: Tree, node_index: int, token_ids: list[int], entropy: float, logprob: float) -> Split | None:
        budget = self._of(tree)
        if not budget.leaves or not self._forks(tree, node_index, token_ids, entropy, logprob):
            return None
        return Split(1 + budget.take(self.branch_factor - 1), self.distinct)

    def expand(self, tree: Tree) -> list[Branch]:
        budget = self._of(tree)
        roots = sum(node.parent == PROMPT for node in tree.nodes)
        fill = range(roots, roots + budget.take(budget.leaves))
        return [Branch(PROMPT, Segment("segment", 1, self.max_tokens, group=group)) for group in fill]

    def metrics(self, trees: list[Tree]) -> dict[str, tuple[float, float]]:
        """`fork_sums`, the current threshold, and the one measured on these trees (`fork/measured`)."""
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
        """Updates the threshold from the metrics of all processes, so that all use the same in the next generation."""
        self.memory["fork_generation"] = self.memory.get("fork_generation", 0) + 1
        if self.share is not None:
            remember(self.memory, self.rule.name, metrics["fork/measured"])

    def _of(self, tree: Tree) -> _Budget:
        """The remaining budget of a tree. It references the tree, so that the id is not reused."""
        return self._budgets.setdefault(id(tree), _Budget(tree, self.leaves - self.num_trees))

    def _forks(self, tree: Tree, index: int, token_ids: list[int], entropy: float, logprob: float) -> bool:
        """Whether to fork before the newest token of a growing node; fill-up chains never fork."""
        node, at = tree.nodes[index], len(token_ids) - 1
        if at < self.min_gap or node.group >= self.num_trees:
            return False
        before = tree.tokens(node.parent) + token_ids[:at]
        name, path = f"{tree.prompt_id} {node.group}", [*before, token_ids[-1]]
        return self.rule.forks(entropy, logprob, name, path) and self.text.allows(before)


class _Budget:
    """The number of leaves that may still be added to a tree."""

    def __init__(self, tree: Tree, leaves: int):
        self.tree, self.leaves = tree, leaves

    def take(self, count: int) -> int:
        """Takes up to `count` leaves from the budget, and returns how many."""
        taken = min(count, self.leaves)
        self.leaves -= taken
        return taken
