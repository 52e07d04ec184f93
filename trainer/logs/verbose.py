"""GRPO_MA_VERBOSE=1: the trees of a generation as text."""

from __future__ import annotations

import os
from collections import defaultdict

from trainer.rollout import Rollout
from trainer.tree import PROMPT, Tree

MAX_TEXT = 400


def verbose() -> bool:
    return os.environ.get("GRPO_MA_VERBOSE", "") not in ("", "0")


def print_trees(rollout: Rollout, rewards, decode) -> None:
    """Prints every tree; `rewards` (B,) has one value per row of the rollout."""
    scores = defaultdict(lambda: defaultdict(list))
    for tree, leaf, reward in zip(rollout.row_tree, rollout.row_leaf, rewards, strict=True):
        scores[tree][leaf].append(float(reward))
    for t, tree in enumerate(rollout.trees):
        print(render_tree(tree, decode, scores[t]))


def render_tree(tree: Tree, decode, rewards: dict[int, list[float]]) -> str:
    """The tree as text, indented by depth: kind, status, token count, text, and the rewards of the leaves' rows.

    Args:
        decode: token ids -> text.
        rewards: leaf node index -> rewards of its rows.
    """
    lines = [f"tree {tree.prompt_id}"]

    def visit(parent: int, depth: int):
        for i, node in enumerate(tree.nodes):
            if node.parent == parent:
                text = decode(node.token_ids).replace("\n", "\\n")[:MAX_TEXT]
                score = "".join(f" reward {r:.3f}" for r in rewards.get(i, []))
                lines.append(
                    f"{'  ' * depth}{node.kind} {i} [{node.status}, {len(node.token_ids)} tokens]{score}: {text}"
                )
                visit(i, depth + 1)

    visit(PROMPT, 1)
    return "\n".join(lines)
