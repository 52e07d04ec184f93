"""Small collectives over numbers and names, for what all processes of a run must agree on."""

# N rows of all processes, B rows of this one

from __future__ import annotations

import math

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from trainer.logs.metrics import Mean


class Processes:
    """The processes of a run; every method but the properties is a collective that all of them must call.

    Attributes:
        rank, count: the rank of this process, and the number of processes.
    """

    def __init__(self, accelerator: Accelerator):
        self._accelerator = accelerator
        self.rank, self.count = accelerator.process_index, accelerator.num_processes

    def gather(self, numbers) -> np.ndarray:
        """(N, ...) the integers (B, ...) of every process, in rank order."""
        return self._accelerator.gather(self._tensor(numbers)).cpu().numpy()

    def largest(self, number: int) -> int:
        """The maximum of `number` over all processes."""
        return int(self.gather([number]).max())

    def objects(self, items: list) -> list:
        """The items of every process, in rank order."""
        return gather_object(items)

    def sums(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all processes."""
        return self._accelerator.reduce(tensor, reduction="sum")

    def quotients(self, sums: dict[str, tuple[float, float]]) -> dict[str, Mean]:
        """sum / count over all processes under each name (NaN where the count is 0), in one collective.

        A process may lack some of the names: which metrics rollouts report depends on what was sampled.
        """
        totals: dict[str, list[float]] = {}
        for found in gather_object([sums]):
            for name, pair in found.items():
                totals[name] = [old + float(new) for old, new in zip(totals.get(name, [0.0, 0.0]), pair, strict=True)]
        return {name: Mean(total / count if count else math.nan, count) for name, (total, count) in totals.items()}

    def _tensor(self, numbers) -> torch.Tensor:
        return torch.as_tensor(np.asarray(numbers), device=self._accelerator.device).to(torch.long)
