"""What a few sampled trees say about a prompt's thoughts: how their rewards vary, and what they cost."""

# K thoughts, M answers after each

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from task.rewards.router import task_rewards
from trainer.advantages.totals import row_totals
from trainer.tree import Tree


@dataclass(frozen=True)
class Probe:
    """The inputs of a choice of K and M.

    Attributes:
        between: variance of the thoughts' true mean rewards within a prompt, in squared reward units.
        within: variance of the rewards of one thought's answers.
        thought_cost, answer_cost: of one thought and of one answer, in tokens or in seconds.
    """

    between: float
    within: float
    thought_cost: float
    answer_cost: float


def rewards_by_thought(tree: Tree, prompt, record: dict, tasks, weights, decode) -> np.ndarray:
    """(closed thoughts, answers per thought) rewards of a prompt's tree, NaN where the task abstains.

    Args:
        tree: thoughts at its roots, with the same number of answers below each closed one.
        prompt: its EncodedPrompt.
        record: the prompt's record.
        tasks: task_type -> Task.
        weights: of the format and the accuracy reward.
        decode: list of token id lists -> their texts.
    """
    thoughts = [i for i, node in enumerate(tree.nodes) if node.kind == "thought" and node.status == "ok"]
    below = {i: [] for i in thoughts}
    for leaf in tree.leaves():
        if tree.nodes[leaf].parent in below:
            below[tree.nodes[leaf].parent].append(leaf)
    leaves = [leaf for i in thoughts for leaf in below[i]]
    count, per_thought = len(leaves), {len(found) for found in below.values()}
    assert len(per_thought) <= 1, f"thoughts of {tree.prompt_id} have {sorted(per_thought)} answers"
    if not count:
        return np.zeros((0, 0))
    columns = {
        "completions": decode([tree.tokens(leaf) for leaf in leaves]),
        "record": [json.dumps(record)] * count,
        "image_sizes": [prompt.image_sizes] * count,
        "processed_sizes": [prompt.processed_sizes] * count,
    }
    values = [function(**columns) for function in task_rewards(tasks)]
    table = np.array(values, dtype=np.float64).T  # None becomes NaN
    return row_totals(table, weights, [0] * count, [True] * len(values)).reshape(len(thoughts), -1)


def variances(rewards: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """(between, within) of a `Probe`, means over prompts; None without a prompt that has two thoughts with two answers.

    `between` is at least its own standard error over prompts: a few samples cannot show that thoughts are all equal.

    Args:
        rewards: per prompt, see `rewards_by_thought`.
    """
    kept = [one[~np.isnan(one).any(axis=1)] for one in rewards]
    kept = [one for one in kept if one.shape[0] > 1 and one.shape[1] > 1]
    if not kept:
        return None
    within = np.array([one.var(axis=1, ddof=1).mean() for one in kept])
    answers = kept[0].shape[1]
    between = np.array([one.mean(axis=1).var(ddof=1) for one in kept]) - within / answers
    error = between.std(ddof=1) / len(between) ** 0.5 if len(between) > 1 else within.mean() / answers
    return max(float(between.mean()), float(error)), float(within.mean())


def tokens_per_node(trees: Sequence[Tree]) -> tuple[float, float]:
    """Mean sampled tokens of a thought and of an answer."""
    nodes = [node for tree in trees for node in tree.nodes if node.status != "failed"]
    thoughts, answers = ([len(node.token_ids) for node in nodes if node.kind == k] for k in ("thought", "answer"))
    return fmean(thoughts), fmean(answers)
