"""`--on_zero_spread redraw`: prompts whose rewards do not differ are replaced before the update.

Dynamic sampling as in DAPO (arXiv 2503.14476), with a bound on the rounds.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.zero_spread.groups import Groups
from trainer.zero_spread.slots import Sampler, Slot, Sums

FILE_NAME = "redraws.jsonl"


@dataclass(frozen=True)
class Redrawn:
    """What came of redrawing on one process.

    Attributes:
        slots: scored.
        drawn: {prompt of the generation: dataset row} of each round, of all processes.
        discarded: the slots whose places others took.
        sums: metric -> (sum, count).
    """

    slots: list[Slot]
    drawn: list[dict[int, int]]
    discarded: list[Slot]
    sums: Sums


def redrawn(slots: list[Slot], sampler: Sampler, groups: Groups, substitutes: np.ndarray, dataset) -> Redrawn:
    """Scored slots, in which prompts without signal have been replaced round after round.

    Every process makes the same number of rounds and takes the same decisions, also with nothing to replace itself.

    Args:
        slots: of this process, as grown.
        substitutes: (rounds, groups), see `draws.substitutes`.
        dataset: the rows that `substitutes` numbers.

    redraw/share: share of the prompts that were replaced; redraw/drawn: prompts drawn in their place, per prompt;
    redraw/left: share of the prompts without signal after the last round; redraw/tokens: sampled tokens of rollouts
    that were discarded, per prompt; redraw/first_reward: mean reward before anything was replaced, which unlike the
    reward of the rows that train is not biased by the selection.
    """
    slots = sampler.score(slots)
    flat, first_reward = groups.flat(slots)
    drawn: list[dict[int, int]] = []
    discarded: list[Slot] = []
    for row in substitutes.tolist():
        wanted = {group: row[group] for group in flat if row[group] >= 0}
        if not wanted:
            break
        drawn.append(wanted)
        own = groups.own(list(wanted))
        discarded += [slots[t] for t in own]
        fresh = sampler.score(sampler.grow([dataset[wanted[groups.first + t]] for t in own]))
        places = dict(zip(own, fresh, strict=True))
        slots = [places.get(t, slot) for t, slot in enumerate(slots)]
        flat, _ = groups.flat(slots)
    replaced = [groups.own(list(wanted)) for wanted in drawn]
    count = len(slots)
    sums = {
        "redraw/share": (len(set().union(*replaced)), count),
        "redraw/drawn": (sum(map(len, replaced)), count),
        "redraw/left": (len(groups.own(flat)), count),
        "redraw/tokens": (sum(map(sampled_tokens, discarded)), count),
        "redraw/first_reward": (0.0, 0) if math.isnan(first_reward) else (first_reward, 1),
    }
    return Redrawn(slots, drawn, discarded, sums)


def sampled_tokens(slot: Slot) -> int:
    return sum(len(node.token_ids) for node in slot.tree.nodes if node.sampled)


def note_drawn(folder: str, step: int, drawn: list[dict[int, int]], dataset) -> None:
    """Appends what was drawn to `redraws.jsonl`: a line per replaced prompt of the generation grown at `step`."""
    with (Path(folder) / FILE_NAME).open("a", encoding="utf-8") as out:
        for number, wanted in enumerate(drawn):
            for group, row in wanted.items():
                name = json.loads(dataset[row]["record"])["id"]
                out.write(json.dumps({"step": step, "round": number, "prompt": group, "row": row, "id": name}) + "\n")
