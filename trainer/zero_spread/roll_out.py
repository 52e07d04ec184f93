"""The rollouts of one generation on this process, and what is done about prompts whose rewards do not differ."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from task.rewards.router import TaskReward
from trainer.engines.prefix_use import cache_sums
from trainer.generation import Training
from trainer.zero_spread.draws import substitutes
from trainer.zero_spread.groups import Groups
from trainer.zero_spread.grow import Draw, grown
from trainer.zero_spread.redraw import note_drawn, redrawn
from trainer.zero_spread.slots import Sampler, Scores, Slot, Sums, scores_of


@dataclass(frozen=True)
class RolledOut:
    """What was grown.

    Attributes:
        slots: one per prompt of this process.
        training: the rows, and which of them train.
        scores: of all rows, if they were scored while the trees grew.
        sums: metric -> (sum, count).
    """

    slots: list[Slot]
    training: Training
    scores: Scores | None
    sums: Sums


def roll_out(trainer, engine) -> RolledOut:
    """Grows the trees of the trainer's generation; under `on_zero_spread` redraw and grow, scores them as well."""
    generation, args = trainer.generation, trainer.args
    policy = generation.policy
    sampler = Sampler(
        engine, trainer.encoder, policy, trainer.rollout_bar, trainer.eos_token_ids[0], trainer.score_rollout
    )
    slots = sampler.grow(generation.rows[:: policy.leaves])
    rows, sums = None, {}
    if generation.substitutes is not None:
        dataset, step = trainer.train_dataset, trainer.state.global_step
        found = redrawn(slots, sampler, groups_of(trainer), generation.substitutes, dataset)
        slots, sums, generation.discarded = found.slots, found.sums, [slot.tree for slot in found.discarded]
        if trainer.accelerator.is_main_process:
            note_drawn(args.output_dir, step, found.drawn, dataset)
    elif policy.extends:
        draw = Draw(args.seed, generation_number(trainer))
        slots, rows, sums = grown(slots, sampler, groups_of(trainer), args.further_answers, draw)
    scores = None if slots[0].rewards is None else scores_of(slots, sampler.reward_sums)
    return RolledOut(slots, _training(sampler, slots, rows), scores, sums | sampler.sums() | cache_sums(engine))


def generation_number(trainer) -> int:
    """Of the generation that is grown, counted from 0 over the whole run."""
    return trainer.state.global_step // trainer.args.window


def groups_of(trainer) -> Groups:
    args = trainer.args
    return Groups(
        trainer.processes,
        slots=len(trainer.generation.records),
        spanning=args.sync_prompt_across_ranks,
        weights=trainer.reward_weights.tolist(),
        is_task_reward=[isinstance(function, TaskReward) for function in trainer.reward_funcs],
        gamma=trainer.method.discount(args),
        bounds=args.keep_between,
    )


def substitutes_of(trainer) -> np.ndarray | None:
    """(rounds, prompts over all processes) dataset rows that replace prompts; None where no prompt is replaced."""
    args, number = trainer.args, generation_number(trainer)
    if args.on_zero_spread != "redraw":
        return None
    of_processes = trainer.sampler.drawn(number)
    count = args.prompts_per_generation * (1 if args.sync_prompt_across_ranks else len(of_processes))
    seed = args.seed if args.data_seed is None else args.data_seed
    drawn = {row for rows in of_processes for row in rows}
    return substitutes(len(trainer.train_dataset), drawn, seed, number, args.max_redraws, count)


def records_with_substitutes(trainer, records: list[dict], found: np.ndarray | None) -> list[dict]:
    """The records of this process's prompts, and of all that may replace them."""
    if found is None:
        return records
    first = 0 if trainer.args.sync_prompt_across_ranks else trainer.processes.rank * len(records)
    rows = found[:, first : first + len(records)].flatten().tolist()
    return [*records, *(json.loads(trainer.train_dataset[row]["record"]) for row in rows if row >= 0)]


def _training(sampler: Sampler, slots: list[Slot], rows: list[list[int]] | None) -> Training:
    whole = sampler.rollout(slots)
    if rows is None:
        return Training.of_all(whole)
    trained, weights, start = [], [], 0
    for slot, own in zip(slots, rows, strict=True):
        trained += [start + row for row in own]
        weights += [len(slot.leaves) / len(own)] * len(own)
        start += len(slot.leaves)
    return Training(whole, whole.take(trained), trained, weights)
