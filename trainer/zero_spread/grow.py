"""`--on_zero_spread grow`: prompts whose rewards do not differ get further answers below their thoughts.

A thought and the prompt above it are not sampled again. All n + E rewards of the prompt define the advantages; n of its
rows train, drawn uniformly and weighted by (n + E) / n, so that the expected update is that of all n + E rows, and no
other prompt has fewer rows. How many answers are added is decided beforehand, and no outcome stops growth early: a
group that grew until its first success would count that success too often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.zero_spread.draws import answers_per_tree, trained_rows
from trainer.zero_spread.groups import Groups
from trainer.zero_spread.slots import Sampler, Slot, Sums


@dataclass(frozen=True)
class Draw:
    """The random numbers of a generation: a function of the run's seed and the generation's number."""

    seed: int
    generation: int


def grown(
    slots: list[Slot], sampler: Sampler, groups: Groups, budget: int, draw: Draw
) -> tuple[list[Slot], list[list[int]], Sums]:
    """Scored slots, some with further rows; the rows of each slot that train; and metrics as (sum, count).

    Every process takes the same decisions: the budget is spread evenly over the trees, on all processes, of prompts
    without signal that have a closed thought, with at most as many further answers per tree as it has leaves.

    Args:
        slots: of this process, as grown; the sampler's policy `extends` them.
        budget: further answers of the generation over all processes.

    grow/share: share of the prompts that got further answers; grow/answers: these, per prompt; grow/rescued: share of
    the prompts with further answers whose rewards then differ.
    """
    slots, policy = sampler.score(slots), sampler.policy
    flat, _ = groups.flat(slots)
    open_trees = groups.processes.gather([bool(policy.further(slot.tree, 1)) for slot in slots])
    first = groups.processes.rank * groups.slots
    group_of = np.arange(len(open_trees)) % groups.count
    trees = [int(tree) for tree in np.flatnonzero(open_trees) if group_of[tree] in flat]
    counts = answers_per_tree(trees, budget, policy.leaves, draw.seed, draw.generation)
    more = [counts.get(first + t, 0) for t in range(len(slots))]
    slots = sampler.extend(slots, [policy.further(slot.tree, count) for slot, count in zip(slots, more, strict=True)])
    slots = sampler.score(slots)
    still, _ = groups.flat(slots)
    tried = [t for t, count in enumerate(more) if count]
    sums = {
        "grow/share": (len(tried), len(slots)),
        "grow/answers": (sum(more), len(slots)),
        "grow/rescued": (len(set(tried) - set(groups.own(still))), len(tried)),
    }
    rows = [
        trained_rows(len(slot.leaves), policy.leaves, draw.seed, draw.generation, first + t)
        for t, slot in enumerate(slots)
    ]
    return slots, rows, sums
