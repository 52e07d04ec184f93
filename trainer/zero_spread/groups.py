"""Which prompts of a generation have no signal, decided over the rows of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.advantages.totals import discounted, row_totals
from trainer.processes import Processes
from trainer.tree import Tree
from trainer.zero_spread.draws import without_signal
from trainer.zero_spread.slots import Slot


@dataclass(frozen=True)
class Groups:
    """The prompts of a generation over all processes, numbered from 0.

    Args:
        processes: of the run.
        slots: prompts per process.
        spanning: whether all processes hold the same prompts, so that a prompt's rows span them.
        weights, is_task_reward: (F,) of the reward functions, see `row_totals`.
        gamma: discount per turn of an episode's return, see `discounted`; None for methods without turns.
        bounds: a prompt whose mean reward lies outside of them counts as one without signal; None: no bounds.
    """

    processes: Processes
    slots: int
    spanning: bool
    weights: Sequence[float]
    is_task_reward: Sequence[bool]
    gamma: float | None = None
    bounds: Sequence[float] | None = None

    @property
    def count(self) -> int:
        return self.slots if self.spanning else self.slots * self.processes.count

    @property
    def first(self) -> int:
        """The number of this process's first prompt."""
        return 0 if self.spanning else self.slots * self.processes.rank

    def own(self, groups: Sequence[int]) -> list[int]:
        """The slots of this process among these groups."""
        return [group - self.first for group in groups if 0 <= group - self.first < self.slots]

    def flat(self, slots: list[Slot]) -> tuple[list[int], float]:
        """(groups without signal, mean reward) of scored slots, the same on all processes; a collective."""
        rows = [
            [self.first + t, *self._of_turns(slot.tree, leaf), *rewards]
            for t, slot in enumerate(slots)
            for leaf, rewards in zip(slot.leaves, slot.rewards.tolist(), strict=True)
        ]
        numbers = np.array(self.processes.objects(rows), dtype=np.float64)
        groups, of_turns, factors = numbers[:, 0].astype(int), numbers[:, 1], numbers[:, 2]
        totals = of_turns + factors * row_totals(numbers[:, 3:], self.weights, groups, self.is_task_reward)
        known = totals[~np.isnan(totals)]
        return without_signal(totals, groups, self.bounds), float(known.mean()) if len(known) else float("nan")

    def _of_turns(self, tree: Tree, leaf: int) -> tuple[float, float]:
        return (0.0, 1.0) if self.gamma is None else discounted(tree.turn_rewards(leaf), self.gamma)
