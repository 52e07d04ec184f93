"""Completions of one batch: seeded by the batch's content, and halved when memory runs out."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from trainer.policies.policy import Policy
from trainer.tree import Tree


@dataclass(frozen=True)
class Unit:
    """`count` completions of one prompt, starting with the record's `first`-th; `place` is the record's index."""

    place: int
    record: dict
    prompt: Any
    first: int = 0
    count: int = 1


@dataclass(frozen=True)
class Sample:
    """One completion: its tokens, observations included, the status of its leaf, and the number of sampled tokens."""

    token_ids: list[int]
    status: str
    sampled: int
    columns: dict = field(default_factory=dict)
    error: str | None = None


class BatchGrower:
    """Grows the completions of batches.

    A batch that does not fit in memory is grown in two halves, recursively down to a single completion. The result for
    a batch does not depend on earlier batches, so a resumed run gives the same completions.

    Args:
        engine: grows the trees; its sampling is the caller's choice.
        make_policy: returns the policy for units, which all have the same `count`; its trees must have `count` leaves.
        seed: for each batch, torch's default generator is seeded with this and with the requested completions; None
            leaves the generator alone (greedy).
    """

    def __init__(self, engine, make_policy: Callable[[list[Unit]], Policy], seed: int | None):
        self.engine, self.make_policy, self.seed = engine, make_policy, seed
        self._warned = False

    def grow(self, units: list[Unit]) -> list[list[Sample] | None]:
        """The completions of each unit, None for a unit that does not fit in memory even alone."""
        try:
            return self._together(units)
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and not should_reduce_batch_size(error):
                raise
        # outside the handler: the error keeps the frames alive, and with them the memory
        clear_device_cache(garbage_collection=True)
        wanted = sum(unit.count for unit in units)
        if not self._warned:
            self._warned = True
            print(
                f"{wanted} completions in one batch ran out of memory, halved: a smaller batch size saves time",
                file=sys.stderr,
            )
        if wanted == 1:
            return [None]
        if len(units) > 1:
            middle = len(units) // 2
            return self.grow(units[:middle]) + self.grow(units[middle:])
        return [self._in_two(units[0])]

    def _in_two(self, unit: Unit) -> list[Sample] | None:
        half = unit.count // 2
        parts = replace(unit, count=half), replace(unit, first=unit.first + half, count=unit.count - half)
        left, right = (self.grow([part])[0] for part in parts)
        return None if left is None or right is None else left + right

    def _together(self, units: list[Unit]) -> list[list[Sample]]:
        policy = self.make_policy(units)
        if self.seed is not None:
            torch.manual_seed(content_seed(self.seed, units))
        trees = self.engine.grow([unit.prompt for unit in units], policy, [unit.record["id"] for unit in units])
        return [_samples(tree, unit.count, policy) for tree, unit in zip(trees, units, strict=True)]


def content_seed(seed: int, units: list[Unit]) -> int:
    """A seed that depends only on the run's seed and the requested completions."""
    content = json.dumps([seed, [(unit.record["id"], unit.first, unit.count) for unit in units]])
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:7])


def _samples(tree: Tree, count: int, policy: Policy) -> list[Sample]:
    leaves = tree.leaves()
    assert len(leaves) == count, f"{len(leaves)} completions of {tree.prompt_id!r}, {count} were requested"
    return [_sample(tree, leaf, policy) for leaf in leaves]


def _sample(tree: Tree, leaf: int, policy: Policy) -> Sample:
    node = tree.nodes[leaf]
    sampled = sum(len(tree.nodes[i].token_ids) for i in tree.path(leaf) if tree.nodes[i].sampled)
    return Sample(tree.tokens(leaf), node.status, sampled, policy.report(tree, leaf), node.error)
