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


class Phase(Enum):
    """The stage of processing of a generation."""

    GROWING = "growing"  # its trees are being sampled
    SCORING = "scoring"  # its rewards, and the log-probs of the old policy and the reference
    TRAINING = "training"  # on its micro-batches


@dataclass
class Generation:
    """Everything the trainer knows about the rollouts it trains on; the next generation replaces it as a whole.

    Attributes:
        rows: (B,) the dataset rows as TRL passed them, `policy.leaves` equal ones per prompt.
        records: (P,) the parsed record of each prompt.
        policy: the branching policy that grows the trees.
        two_terms: whether thoughts and answers are two terms of the objective in every pass over this generation.
        phase: the current stage.
        rollout: the trees as rows; None while growing.
        partition: the rows of each micro-batch.
        rewards: (N, functions) rewards of all processes, NaN where a function abstains.
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
    rollout: Rollout | None = None
    partition: list[list[int]] = field(default_factory=list)
    rewards: torch.Tensor | None = None
    current_rows: list[int] | None = None
    cached_logps: tuple[Any, ...] | None = None
    gaps: list[dict[str, np.ndarray]] = field(default_factory=list)

    def __post_init__(self):
        assert len(self.rows) == len(self.records) * self.policy.leaves, f"{len(self.rows)} rows"

    def grown(self, rollout: Rollout, partition: list[list[int]]) -> None:
        """Ends the phase in which the trees grow; rewards, and old and reference log-probs come next."""
        self.rollout, self.partition, self.phase = rollout, partition, Phase.SCORING

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
