"""The trees of one generation, seen as the rows TRL trains on: one row a leaf, trees contiguous."""

from __future__ import annotations

from dataclasses import dataclass

from model.vlm_module import EncodedPrompt
from trainer.tree import PROMPT, Tree


@dataclass
class Rollout:
    """P trees of one process and their B = P * leaves rows.

    Attributes:
        prompts: the encoded prompt of each tree (a placeholder without media where the prompt could not be read).
        trees: the P trees, in the order of the prompts.
        row_tree, row_leaf: (B,) tree index and leaf node of each row.
        failed: (P,) True where a tree is one failed node.
    """

    prompts: list[EncodedPrompt]
    trees: list[Tree]
    row_tree: list[int]
    row_leaf: list[int]

    @classmethod
    def of(cls, prompts: list[EncodedPrompt], trees: list[Tree], leaves: int) -> Rollout:
        """Rows of `trees`, `leaves` a tree (see `leaf_rows`)."""
        rows = [leaf_rows(tree, leaves) for tree in trees]
        row_tree = [t for t, tree_rows in enumerate(rows) for _ in tree_rows]
        return cls(prompts, trees, row_tree, [leaf for tree_rows in rows for leaf in tree_rows])

    @property
    def failed(self) -> list[bool]:
        return [tree.nodes[0].status == "failed" for tree in self.trees]

    def root(self, row: int) -> int:
        """Node index of the first node below the prompt on the row's path: its thought."""
        return self.trees[self.row_tree[row]].path(self.row_leaf[row])[0]

    def closed(self, row: int) -> bool:
        """Whether the row's thought closed (an unclosed one has no answers, its rows are one completion)."""
        return self.trees[self.row_tree[row]].nodes[self.root(row)].status not in ("unclosed", "failed")

    def completion(self, row: int) -> list[int]:
        return self.trees[self.row_tree[row]].tokens(self.row_leaf[row])

    def per_token(self, row: int, value) -> list:
        """`value(node)` at every completion token of the row."""
        tree = self.trees[self.row_tree[row]]
        return tree.spread([value(node) for node in tree.nodes], self.row_leaf[row])

    def logprobs(self, row: int) -> list[float]:
        """Sampling log-probabilities of the completion; 0 where the token was not sampled."""
        tree = self.trees[self.row_tree[row]]
        nodes = [tree.nodes[i] for i in tree.path(self.row_leaf[row])]
        return [x for node in nodes for x in (node.logprobs if node.sampled else [0.0] * len(node.token_ids))]

    def as_trl(self) -> dict[str, list]:
        """What TRL's `rollout_func` must return, with extra columns for the rewards."""
        rows = range(len(self.row_tree))
        prompts = [self.prompts[t] for t in self.row_tree]
        failed = self.failed
        return {
            "prompt_ids": [list(prompt.ids) for prompt in prompts],
            "completion_ids": [self.completion(row) for row in rows],
            "logprobs": [self.logprobs(row) for row in rows],
            "env_mask": [self.per_token(row, lambda node: int(node.sampled)) for row in rows],
            "image_sizes": [prompt.image_sizes for prompt in prompts],
            "processed_sizes": [prompt.processed_sizes for prompt in prompts],
            "failed": [failed[t] for t in self.row_tree],
        }


def leaf_rows(tree: Tree, leaves: int) -> list[int]:
    """The leaf of each of a tree's `leaves` rows, grouped by the first node below the prompt.

    Every such node owns an equal share of rows: one row a leaf below it, or, if it is a leaf itself (a chain, or a
    thought that never closed), that leaf in all of them.

    >>> from trainer.tree import Node
    >>> thoughts = [Node(-1, "thought", [1]), Node(-1, "thought", [2])]
    >>> tree = Tree("a", [*thoughts, Node(0, "answer", [3]), Node(0, "answer", [4])])
    >>> leaf_rows(tree, 4)
    [2, 3, 1, 1]
    """
    below: dict[int, list[int]] = {i: [] for i, node in enumerate(tree.nodes) if node.parent == PROMPT}
    for leaf in tree.leaves():
        below[tree.path(leaf)[0]].append(leaf)
    share, rest = divmod(leaves, len(below))
    assert rest == 0, f"{leaves} rows over {len(below)} thoughts"
    rows = []
    for found in below.values():
        assert len(found) in (1, share), f"{len(found)} leaves below a thought that owns {share} rows"
        rows += found if len(found) == share else found * share
    return rows
