"""The prompts of a generation on one process: each with its tree, and with the rewards of its rows once scored."""

# n rows of a slot, F reward functions

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from model.vlm_module import EncodedPrompt
from trainer.logs.progress import RolloutBar
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch
from trainer.prompts import PromptEncoder
from trainer.rollout import Rollout
from trainer.tree import Tree

Sums = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Scores:
    """Rewards of rows.

    Attributes:
        rewards: (rows, F), NaN where a function abstains.
        extra: column of TRL's table of completions -> (rows,) values that the functions added.
        sums: metric -> (sum, count) over the rows.
    """

    rewards: torch.Tensor
    extra: dict[str, list] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)


@dataclass(frozen=True)
class Slot:
    """One prompt of a generation.

    Attributes:
        row: of the dataset.
        prompt: encoded, None if it is skipped.
        tree: its rollouts.
        leaves: (n,) leaf of each row.
        rewards, extra: as in `Scores`, of the n rows; None and empty before they are scored.
    """

    row: dict
    prompt: EncodedPrompt | None
    tree: Tree
    leaves: list[int]
    rewards: torch.Tensor | None = None
    extra: dict[str, list] = field(default_factory=dict)

    @property
    def record(self) -> dict:
        return json.loads(self.row["record"])


class Sampler:
    """Grows, scores and extends slots, and adds up the metrics of doing so.

    Args:
        engine: samples trees.
        encoder: encodes prompts.
        policy: decides where trees fork.
        bar: progress bar.
        eos_id: the token of a leaf that could not be grown.
        score: (dataset row of each rollout row, rollout) -> Scores.

    Attributes:
        tokens, seconds: of sampling so far.
        reward_sums: metric -> (sum, count), of scoring so far.
    """

    def __init__(
        self,
        engine,
        encoder: PromptEncoder,
        policy: Policy,
        bar: RolloutBar,
        eos_id: int,
        score: Callable[[list[dict], Rollout], Scores],
    ):
        self.engine, self.encoder, self.policy, self.bar = engine, encoder, policy, bar
        self.eos_id, self._score = eos_id, score
        self.tokens, self.seconds = 0, 0.0
        self.reward_sums: Sums = {}

    def grow(self, rows: list[dict]) -> list[Slot]:
        """A slot per dataset row, not scored."""
        if not rows:
            return []
        prompts = [self.encoder.encode(row) for row in rows]
        ids = [json.loads(row["record"])["id"] for row in rows]
        with self.bar as self.engine.progress:
            trees = self.engine.grow(prompts, self.policy, ids)
        self._note_time()
        count = self.policy.leaves
        leaves = Rollout.from_trees(prompts, trees, count, self.eos_id).row_leaf
        leaves = [leaves[start : start + count] for start in range(0, len(leaves), count)]
        return [Slot(*parts) for parts in zip(rows, prompts, trees, leaves, strict=True)]

    def score(self, slots: list[Slot]) -> list[Slot]:
        """The slots with the rewards of the rows that had none. Collective: also called by a process without slots."""
        new = [slot.leaves[0 if slot.rewards is None else len(slot.rewards) :] for slot in slots]
        rows = [slot.row for slot, leaves in zip(slots, new, strict=True) for _ in leaves]
        scores = self._score(rows, self._rollout(slots, new))
        self.reward_sums = added(self.reward_sums, scores.sums)
        found, start = [], 0
        for slot, leaves in zip(slots, new, strict=True):
            mine = slice(start, start := start + len(leaves))
            found.append(_joined(slot, scores.rewards[mine], {name: col[mine] for name, col in scores.extra.items()}))
        return found

    def extend(self, slots: list[Slot], branches: list[list[Branch]]) -> list[Slot]:
        """The slots with the leaves of further branches of their trees, not scored."""
        before = [len(slot.tree.nodes) for slot in slots]
        pairs = [(slot.tree, branch) for slot, own in zip(slots, branches, strict=True) for branch in own]
        with self.bar as self.engine.progress:
            self.engine.extend(pairs)
        self._note_time()
        return [
            replace(slot, leaves=[*slot.leaves, *range(count, len(slot.tree.nodes))])
            for slot, count in zip(slots, before, strict=True)
        ]

    def sums(self) -> Sums:
        """Name -> (sum, count) of this process: seconds, and tokens/s of one process."""
        return {
            "rollout/seconds": (self.seconds, 1),
            "rollout/tokens_per_second": (self.tokens, self.seconds),
        }

    def rollout(self, slots: list[Slot]) -> Rollout:
        """The rows of the slots, a slot after the other."""
        return self._rollout(slots, [slot.leaves for slot in slots])

    def _note_time(self) -> None:
        self.tokens, self.seconds = self.tokens + self.bar.tokens, self.seconds + self.bar.seconds

    def _rollout(self, slots: list[Slot], leaves: Sequence[list[int]]) -> Rollout:
        prompts = [slot.prompt or self.encoder.blank() for slot in slots]
        owners = [t for t, own in enumerate(leaves) for _ in own]
        return Rollout(prompts, [slot.tree for slot in slots], owners, [leaf for own in leaves for leaf in own])


def scores_of(slots: list[Slot], sums: Sums) -> Scores:
    """The rewards of all rows of scored slots, a slot after the other."""
    columns = {name for slot in slots for name in slot.extra}
    extra = {name: [x for s in slots for x in s.extra.get(name, [None] * len(s.leaves))] for name in columns}
    return Scores(torch.cat([slot.rewards for slot in slots]), extra, sums)


def added(first: Sums, other: Sums) -> Sums:
    """The sums and counts of both under each name."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, pair in [*first.items(), *other.items()]:
        totals[name] = [old + new for old, new in zip(totals[name], pair, strict=True)]
    return {name: (total, count) for name, (total, count) in totals.items()}


def _joined(slot: Slot, rewards: torch.Tensor, extra: dict[str, list]) -> Slot:
    """The slot with the rewards of further rows behind those it has; a column that either lacks is None there."""
    if slot.rewards is None:
        return replace(slot, rewards=rewards, extra=extra)
    old, new = len(slot.rewards), len(rewards)
    names = slot.extra.keys() | extra.keys()
    extra = {n: [*slot.extra.get(n, [None] * old), *extra.get(n, [None] * new)] for n in names}
    return replace(slot, rewards=torch.cat([slot.rewards, rewards]), extra=extra)
