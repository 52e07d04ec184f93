"""The rewards of rollout rows: each row is scored once, when TRL asks or while the trees of its generation grow."""

# B rows of a process, N rows of all processes, F reward functions

from __future__ import annotations

import sys

import torch
from trl import GRPOTrainer

from trainer.generation import Generation
from trainer.logs.outcome import failure_sums
from trainer.processes import Processes
from trainer.rollout import Rollout
from trainer.swapped import swapped
from trainer.zero_spread.slots import Scores

TRL = sys.modules[GRPOTrainer.__module__]
READ_BY_TRL = ("prompt_ids", "completion_ids", "logprobs", "env_mask")  # of a rollout; rewards get the other columns


class ScoredOnce:
    """The part of a GRPOTrainer that calls the rewards; a base class placed before the library's.

    TRL's `_calculate_rewards` gathers what it found, so that all processes must score equally many rows. Here it
    scores the rows of one process, any number of them, and the gathering is done by the callers.
    """

    generation: Generation | None
    processes: Processes

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """TRL's seam: (N, F) rewards of the rows that train, scored here unless that was done while growing."""
        generation = self.generation
        training, scores = generation.training, generation.scores
        if scores is None:
            scores = self._own_scores(inputs, prompts, completions, completion_ids_list)
        # Metrics logged by rewards are averaged over all values of all processes; TRL averages the processes' means.
        self.record_metrics(self.processes.quotients(scores.sums))
        columns = {name: [values[row] for row in training.rows] for name, values in scores.extra.items()}
        self._pending_extra_logs.update(columns)
        rewards = scores.rewards.tolist()  # float32 values are exact in Python's floats; processes may differ in rows
        generation.rewards = torch.tensor(self.processes.objects(rewards), device=scores.rewards.device)
        return self.accelerator.gather(scores.rewards[training.rows])

    def score_rollout(self, rows: list[dict], rollout: Rollout) -> Scores:
        """Scores of rollout rows while trees grow; a process may have none.

        Args:
            rows: (B,) the dataset row of each rollout row.
        """
        columns = rollout.as_trl()
        ids = columns["completion_ids"]
        given = {name: values for name, values in columns.items() if name not in READ_BY_TRL}
        inputs = [row | {name: values[i] for name, values in given.items()} for i, row in enumerate(rows)]
        texts = self.module.completion_texts(ids, self.eos_token_ids) if rows else []
        with torch.autocast(self.accelerator.device.type, enabled=False):  # of the engine, not of a reward model
            return self._own_scores(inputs, [row["prompt"] for row in rows], texts, ids)

    def _own_scores(self, inputs, prompts, completions, completion_ids_list) -> Scores:
        """Scores of rows of this process, without gathering."""
        if inputs:
            with swapped(TRL, gather=lambda rewards: rewards):
                rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        else:
            rewards = torch.zeros(0, len(self.reward_funcs), device=self.accelerator.device)
        infinite = torch.isinf(rewards)
        sums = {name: (sum(values), len(values)) for name, values in self._pending_metrics.items()}
        sums |= failure_sums(self._pending_metrics, self.reward_func_names, sum(not row["failed"] for row in inputs))
        sums["rewards/non_finite"] = (infinite.sum().item(), self.processes.rank == 0)  # a sum over all processes
        extra = dict(self._pending_extra_logs)
        self._pending_metrics.clear()
        self._pending_extra_logs.clear()
        rewards[infinite] = torch.nan
        rewards[torch.tensor([row["failed"] for row in inputs], dtype=torch.bool, device=rewards.device)] = torch.nan
        return Scores(rewards, extra, sums)
