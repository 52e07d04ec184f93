"""One generation of rollouts as a value: its prompts, its trees, their rewards, and the micro-batches they train in."""

# B rows of a process, N rows of all processes, P prompts of a process

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch

from trainer.policies.policy import Policy
from trainer.rollout import Rollout
from trainer.tree import Tree


class Phase(Enum):
    """The stage of processing of a generation."""

    GROWING = "growing"  # its trees are being sampled
    SCORING = "scoring"  # its rewards, and the log-probs of the old policy and the reference
    TRAINING = "training"  # on its micro-batches


@dataclass(frozen=True)
class Training:
    """The rows of this process that train, among all rows whose rewards define the advantages.

    Attributes:
        scored: all rows.
        rollout: the B rows that train.
        rows: (B,) their places in `scored`, ascending.
        weights: (B,) factors of their advantages.
    """

    scored: Rollout
    rollout: Rollout
    rows: list[int]
    weights: list[float]

    @classmethod
    def of_all(cls, rollout: Rollout) -> Training:
        """Every row trains."""
        count = len(rollout.row_tree)
        return cls(rollout, rollout, list(range(count)), [1.0] * count)


@dataclass
class Generation:
    """Everything the trainer knows about the rollouts it trains on; the next generation replaces it as a whole.

    Attributes:
        rows: (B,) the dataset rows as TRL passed them, `policy.leaves` equal ones per prompt.
        records: (P,) the parsed record of each prompt.
        policy: the branching policy that grows the trees.
        two_terms: whether thoughts and answers are two terms of the objective in every pass over this generation.
        phase: the current stage.
        substitutes: (rounds, prompts over all processes) dataset rows that replace prompts without signal, see
            `trainer.zero_spread.draws.substitutes`; None: prompts are not replaced.
        rollout: the trees as the B rows that train; None while growing.
        training: these rows among all rows that were scored; None while growing.
        discarded: trees of prompts that were replaced.
        scores: of all rows, if they were scored while growing, else None.
        partition: the rows of each micro-batch.
        rewards: (N, functions) rewards of the scored rows of all processes, NaN where a function abstains.
        current_rows: the rows of the current forward pass; None while growing.
        cached_logps: log-probs and entropies of the micro-batch being trained on, which its loss may ask for more than
            once; None before its forward pass, and in every other phase.
        gaps: `policy_gaps` of the micro-batches of its first optimiser step so far.
    """

    rows: list[dict]
    records: list[dict]
    policy: Policy
    two_terms: bool
    phase: Phase = Phase.GROWING
    substitutes: np.ndarray | None = None
    rollout: Rollout | None = None
    training: Training | None = None
    discarded: list[Tree] = field(default_factory=list)
    scores: Any = None
    partition: list[list[int]] = field(default_factory=list)
    rewards: torch.Tensor | None = None
    current_rows: list[int] | None = None
    cached_logps: tuple[Any, ...] | None = None
    gaps: list[dict[str, np.ndarray]] = field(default_factory=list)

    def __post_init__(self):
        assert len(self.rows) == len(self.records) * self.policy.leaves, f"{len(self.rows)} rows"

    def grown(self, training: Training, partition: list[list[int]], rows: list[dict], scores: Any = None) -> None:
        """Ends the phase in which the trees grow; rewards, and old and reference log-probs come next.

        `rows`: (P,) the dataset rows of the prompts. Where they were replaced, `self.rows` changes in place, and TRL's
        list of inputs, the same object, with it.
        """
        self.training, self.rollout, self.partition = training, training.rollout, partition
        self.scores, self.phase = scores, Phase.SCORING
        leaves = self.policy.leaves
        for place, row in enumerate(rows):
            if row is not self.rows[place * leaves]:
                self.rows[place * leaves : (place + 1) * leaves] = [dict(row) for _ in range(leaves)]
                self.records[place] = json.loads(row["record"])

    @contextmanager
    def training_on(self, rows: list[int]):
        """Context of the loss of one micro-batch; the results of its forward pass are dropped afterwards."""
        self.phase, self.current_rows, self.cached_logps = Phase.TRAINING, rows, None
        try:
            yield
        finally:
            self.cached_logps = None

    def sampled(self, rows: list[int], width: int, device) -> torch.Tensor:
        """(rows, T) whether each completion token was sampled; False for observations and padding; T = `width`."""
        flags = [self.rollout.per_token(row, lambda node: node.sampled) for row in rows]
        return torch.tensor([found + [False] * (width - len(found)) for found in flags], device=device)

    def record_names(self) -> str:
        """Ids of the records in the current pass, at most five."""
        rows = self.current_rows or range(len(self.rollout.row_tree))
        found = list(dict.fromkeys(self.rollout.trees[self.rollout.row_tree[row]].prompt_id for row in rows))
        return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")


def records_of(rows: list[dict], leaves: int) -> list[dict]:
    """The parsed record of each prompt of `rows`, `leaves` equal rows per prompt."""
    return [json.loads(row["record"]) for row in rows[::leaves]]
