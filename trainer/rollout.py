"""The trees of one generation as the rows that TRL trains on: one row per leaf, the rows of a tree contiguous."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from model.vlm_module import EncodedPrompt
from trainer.tree import PROMPT, Node, Tree


@dataclass
class Rollout:
    """The P trees of one process and their B = P * leaves rows.

    Attributes:
        prompts: the encoded prompt of each tree (a placeholder without media for a prompt that could not be read).
        trees: the P trees, in the order of the prompts.
        row_tree, row_leaf: (B,) tree index and leaf node of each row.
    """

    prompts: list[EncodedPrompt]
    trees: list[Tree]
    row_tree: list[int]
    row_leaf: list[int]

    @classmethod
    def from_trees(cls, prompts: list[EncodedPrompt], trees: list[Tree], leaves: int, eos_id: int = 0) -> Rollout:
        """`leaves` rows per tree (see `leaf_rows`); missing leaves are added as failed ones of one `eos_id` token."""
        for tree in trees:
            fill_up(tree, leaves, eos_id)
        rows = [leaf_rows(tree, leaves) for tree in trees]
        row_tree = [t for t, tree_rows in enumerate(rows) for _ in tree_rows]
        return cls(prompts, trees, row_tree, [leaf for tree_rows in rows for leaf in tree_rows])

    def take(self, rows: list[int]) -> Rollout:
        """The same trees with only these rows."""
        return Rollout(
            self.prompts, self.trees, [self.row_tree[row] for row in rows], [self.row_leaf[row] for row in rows]
        )

    @property
    def failed(self) -> list[bool]:
        """(P,) True where nothing could be grown for the prompt."""
        return [all(tree.nodes[leaf].status == "failed" for leaf in tree.leaves()) for tree in self.trees]

    @property
    def row_failed(self) -> list[bool]:
        """(B,) True where the row's leaf failed; such a row has no reward."""
        return [self.leaf(row).status == "failed" for row in range(len(self.row_tree))]

    def leaf(self, row: int) -> Node:
        return self.trees[self.row_tree[row]].nodes[self.row_leaf[row]]

    def root(self, row: int) -> int:
        """Index of the root of the row's path: in grpo_ma, its thought."""
        return self.trees[self.row_tree[row]].path(self.row_leaf[row])[0]

    def closed(self, row: int) -> bool:
        """Whether the row's thought closed (an unclosed one has no answers: its rows are one completion)."""
        return self.trees[self.row_tree[row]].nodes[self.root(row)].status not in ("unclosed", "failed")

    def completion(self, row: int) -> list[int]:
        return self.trees[self.row_tree[row]].tokens(self.row_leaf[row])

    def observations(self, row: int) -> list[tuple[int, EncodedPrompt]]:
        """(first completion token, observation) of each observation with pictures in the row."""
        tree, found, at = self.trees[self.row_tree[row]], [], 0
        for i in tree.path(self.row_leaf[row]):
            if tree.nodes[i].media is not None:
                found.append((at, tree.nodes[i].media))
            at += len(tree.nodes[i].token_ids)
        return found

    def per_token(self, row: int, value) -> list:
        """`value(node)` for every completion token of the row."""
        return self.spread(row, [value(node) for node in self.trees[self.row_tree[row]].nodes])

    def spread(self, row: int, values: list) -> list:
        """One value per node of the row's tree -> one value per completion token of the row."""
        return self.trees[self.row_tree[row]].spread(values, self.row_leaf[row])

    def shares(self, trained: list[bool]) -> list[list[float]]:
        """(B,) lists with 1 / (number of trained rows that share the token) for every completion token."""
        through = [Counter() for _ in self.trees]
        for tree, leaf, used in zip(self.row_tree, self.row_leaf, trained, strict=True):
            if used:
                through[tree].update(self.trees[tree].path(leaf))
        counts = [
            [max(count[i], 1) for i in range(len(tree.nodes))] for count, tree in zip(through, self.trees, strict=True)
        ]
        return [self.spread(row, [1 / n for n in counts[tree]]) for row, tree in enumerate(self.row_tree)]

    def logprobs(self, row: int) -> list[float]:
        """Sampling log-probabilities of the completion; 0 for tokens that were not sampled."""
        tree = self.trees[self.row_tree[row]]
        nodes = [tree.nodes[i] for i in tree.path(self.row_leaf[row])]
        return [x for node in nodes for x in (node.logprobs if node.sampled else [0.0] * len(node.token_ids))]

    def as_trl(self) -> dict[str, list]:
        """What TRL's `rollout_func` must return, with extra columns for the rewards."""
        rows = range(len(self.row_tree))
        prompts = [self.prompts[t] for t in self.row_tree]
        return {
            "prompt_ids": [list(prompt.ids) for prompt in prompts],
            "completion_ids": [self.completion(row) for row in rows],
            "logprobs": [self.logprobs(row) for row in rows],
            "env_mask": [self.per_token(row, lambda node: int(node.sampled)) for row in rows],
            "image_sizes": [prompt.image_sizes for prompt in prompts],
            "processed_sizes": [prompt.processed_sizes for prompt in prompts],
            "failed": self.row_failed,
        }


def fill_up(tree: Tree, leaves: int, eos_id: int) -> None:
    """Adds failed leaves until there are `leaves`, except to trees whose rows repeat a leaf (see `leaf_rows`)."""
    missing = leaves - len(tree.leaves())
    if missing > 0 and not _repeats(tree):
        for _ in range(missing):
            tree.add(Node(PROMPT, "segment", [eos_id], sampled=False, status="failed"))


def leaf_rows(tree: Tree, leaves: int) -> list[int]:
    """The leaf of each of a tree's `leaves` rows: the leaves of one group together, in order of creation.

    A thought that never closed gets as many rows as its siblings, and its only leaf is repeated in all of them. The
    same holds for a prompt for which nothing could be grown.

    >>> from trainer.tree import Node
    >>> thoughts = [Node(-1, "thought", [1]), Node(-1, "thought", [2])]
    >>> tree = Tree("a", [*thoughts, Node(0, "answer", [3]), Node(0, "answer", [4])])
    >>> leaf_rows(tree, 4)
    [2, 3, 1, 1]
    """
    found = sorted(tree.leaves(), key=lambda leaf: tree.nodes[leaf].group)
    if len(found) == leaves:
        return found
    assert _repeats(tree), f"{len(found)} leaves for {leaves} rows"
    below: dict[int, list[int]] = {i: [] for i, node in enumerate(tree.nodes) if node.parent == PROMPT}
    for leaf in found:
        below[tree.path(leaf)[0]].append(leaf)
    share, rest = divmod(leaves, len(below))
    assert rest == 0, f"{leaves} rows over {len(below)} thoughts"
    rows = []
    for own in below.values():
        assert len(own) in (1, share), f"{len(own)} leaves below a thought that owns {share} rows"
        rows += own if len(own) == share else own * share
    return rows


def _repeats(tree: Tree) -> bool:
    """Whether rows may repeat a leaf: in trees of thoughts, and for a prompt that could not be read."""
    return tree.nodes[0].kind == "thought" or (len(tree.nodes) == 1 and tree.nodes[0].status == "failed")
