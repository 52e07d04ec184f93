"""Partitions trees into micro-batches of equal numbers of rows and nearly equal numbers of tokens to compute.

The partition is fixed when the trees are grown, and the old, reference and policy passes all use it, so they share the
same packing plans. Every process has the same number of micro-batches.
"""

# B rows of a process, S micro-batches of a generation

from __future__ import annotations

import torch

from trainer.rollout import Rollout


def partition(rollout: Rollout, steps: int, accumulation: int) -> list[list[int]]:
    """The rows of each of `steps` micro-batches; trees are never split.

    Trees are reordered only within an optimiser step (`accumulation` micro-batches), so which prompts an update sees
    does not depend on what was sampled.
    """
    rows = [[] for _ in rollout.trees]
    for row, tree in enumerate(rollout.row_tree):
        rows[tree].append(row)
    sizes = [
        len(prompt.ids) + tree.unique_tokens() for prompt, tree in zip(rollout.prompts, rollout.trees, strict=True)
    ]
    count = len(sizes) * accumulation // steps
    batches = []
    for first in range(0, len(sizes), count):
        for group in balanced(sizes[first : first + count], accumulation):
            batches.append([row for tree in group for row in rows[first + tree]])
    assert len(batches) == steps, (len(batches), steps)
    return batches


def balanced(sizes: list[int], groups: int) -> list[list[int]]:
    """Indices of `sizes` in `groups` groups of equal count and nearly equal sums.

    Greedy: from the largest size down, each goes to the lightest group that is not full.

    >>> balanced([9, 8, 2, 1], groups=2)
    [[0, 3], [1, 2]]
    """
    room, rest = divmod(len(sizes), groups)
    assert rest == 0, f"{len(sizes)} trees in {groups} micro-batches"
    found: list[list[int]] = [[] for _ in range(groups)]
    for tree in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        lightest = min((g for g in found if len(g) < room), key=lambda g: sum(sizes[i] for i in g))
        lightest.append(tree)
    return sorted(sorted(group) for group in found)


def take_rows(output: dict, rows: list[int]) -> dict:
    """The given rows of every tensor of a generation; values without rows (counts) are kept."""
    return {
        name: value[rows] if isinstance(value, torch.Tensor) and value.dim() > 0 else value
        for name, value in output.items()
    }


def token_counts(batch: dict) -> torch.Tensor:
    """(3,) trained tokens of a micro-batch: in total, of thoughts, of answers."""
    mask = batch["completion_mask"] * batch["tool_mask"]
    thought = mask * batch["thought_mask"] if "thought_mask" in batch else mask * 0
    return torch.stack([mask.sum(), thought.sum(), mask.sum() - thought.sum()]).double()
