"""Which process gets which prompts: whole trees, rank-major, reproducible from (seed, epoch) alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from task.errors import UserError


class TreeSampler(Sampler[int]):
    """Emits row indices so that every rank receives whole trees.

    accelerate deals consecutive batches to the ranks in turn, so a generation batch is emitted rank-major: for each
    rank, for each of its prompts, the index `leaves` times. The whole is repeated `repeats` times, since TRL draws one
    batch per micro-step and uses the first of each generation.

    Args:
        num_prompts: rows of the dataset.
        prompts_per_rank: trees per rank and generation.
        leaves: rows per tree.
        ranks: number of processes.
        repeats: micro-steps per generation, times `num_iterations`.
        sync: True: all ranks get the same prompts (a group spans ranks); False: each rank gets its own.
        shuffle, seed: a permutation drawn from (seed, epoch), so that a resumed run sees the same order.

    Raises:
        UserError: the dataset has fewer prompts than one generation needs (training would have zero steps).
    """

    def __init__(self, num_prompts, prompts_per_rank, leaves, ranks, repeats, sync, shuffle, seed):
        self.per_generation = prompts_per_rank * (1 if sync else ranks)
        if num_prompts < self.per_generation:
            raise UserError(
                f"the dataset has {num_prompts} prompts, but one generation needs {self.per_generation} "
                f"(prompts per process {prompts_per_rank}, processes {ranks}, sync_prompt_across_ranks={sync}): add "
                "records, or lower per_device_train_batch_size or gradient_accumulation_steps"
            )
        self.num_prompts, self.leaves, self.ranks, self.repeats = num_prompts, leaves, ranks, repeats
        self.sync, self.shuffle, self.seed, self.epoch = sync, shuffle, seed, 0
        self.unused = num_prompts % self.per_generation
        self.prompts_per_rank = prompts_per_rank

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def prompts_of(self, generation: int, rank: int) -> list[int]:
        """The prompts of `rank` in a generation; generations are counted from 0 over the whole run."""
        epoch, at = divmod(generation, self.num_prompts // self.per_generation)
        chunk = self._order(epoch)[at * self.per_generation : (at + 1) * self.per_generation]
        return chunk if self.sync else chunk[rank * self.prompts_per_rank : (rank + 1) * self.prompts_per_rank]

    def drawn(self, generation: int) -> list[list[int]]:
        """The prompts of every process in a generation."""
        return [self.prompts_of(generation, rank) for rank in range(self.ranks)]

    def _order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.num_prompts))
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * epoch)
        return torch.randperm(self.num_prompts, generator=generator).tolist()

    def __iter__(self) -> Iterator[int]:
        order = self._order(self.epoch)
        for start in range(0, self.num_prompts - self.unused, self.per_generation):
            chunk = order[start : start + self.per_generation]
            batch = chunk * self.ranks if self.sync else chunk
            for _ in range(self.repeats):
                for prompt in batch:
                    yield from [prompt] * self.leaves

    def __len__(self) -> int:
        generations = self.num_prompts // self.per_generation
        return generations * self.per_generation * (self.ranks if self.sync else 1) * self.leaves * self.repeats
