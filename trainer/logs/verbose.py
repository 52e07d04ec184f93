"""GRPO_MA_VERBOSE=1: a generation as text: its prompts, its trees, and how far its advantages agree."""

from __future__ import annotations

import os
from collections import defaultdict

from trainer.advantages.thought_answer import opposed_thoughts
from trainer.rollout import Rollout
from trainer.tree import PROMPT, Tree

MAX_TEXT = 400


def verbose() -> bool:
    return os.environ.get("GRPO_MA_VERBOSE", "") not in ("", "0")


def print_generation(rollout: Rollout, rewards, decode, drawn: list[list[int]], rows, credit) -> None:
    """Prints the rows of the dataset that the sampler drew for each process, the trees, and the opposed thoughts.

    Args:
        rewards: (B,) one value per row of the rollout.
        drawn: per process, from `TreeSampler`.
        rows, credit: of all processes, see `trainer/methods.py`.
    """
    print("sampled rows of the dataset: " + "; ".join(f"process {rank} {rows}" for rank, rows in enumerate(drawn)))
    print_trees(rollout, rewards, decode)
    if credit.thought is not None:
        opposed = opposed_thoughts(credit.thought, credit.leaf, rows.groups, rows.closed)
        print(f"{sum(opposed)} of {len(opposed)} closed thoughts have an answer with an advantage of the other sign")


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
