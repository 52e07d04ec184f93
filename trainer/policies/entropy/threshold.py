"""The threshold that the top share of tokens exceeds: measured on each generation, used in the next."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trainer.policies.entropy.rules import START, ForkRule, OpenText
from trainer.tree import Tree

NEWEST = 0.5  # weight of the newest generation


def threshold_of(rule: str, share: float, absolute: float | None, memory: dict) -> float:
    """The threshold of a generation, constant while it grows.

    Args:
        rule: name of the score, one of `RULES`.
        share: share of tokens that may fork.
        absolute: fixed threshold in nats, used instead of the share if given.
        memory: filled by `remember`; while it is empty the threshold is `START` (ln 2 nats).
    """
    if rule == "fixed":
        return 0.0
    if rule == "random":
        return 1.0 - share
    return memory.get(f"fork_{rule}", START) if absolute is None else absolute


def remember(memory: dict, rule: str, measured: float) -> None:
    """Moves the stored threshold of `rule` halfway to `measured`, the first time all the way; ignores NaN."""
    if not math.isnan(measured):
        kept = memory.get(f"fork_{rule}", measured)
        memory[f"fork_{rule}"] = (1 - NEWEST) * kept + NEWEST * measured


def top_share(trees: list[Tree], rule: ForkRule, text: OpenText, share: float) -> float:
    """The score exceeded by `share` of the tokens before the answer, each token counted once; NaN if there are none."""
    scores = sorted((score for tree in trees for score in _scores(tree, rule, text)), reverse=True)
    return scores[int(share * len(scores))] if scores else math.nan


def _scores(tree: Tree, rule: ForkRule, text: OpenText) -> Iterator[float]:
    for node in tree.nodes:
        if node.sampled and node.status != "failed":
            above = tree.tokens(node.parent)
            for i in range(text.open_length(above, node.token_ids)):
                yield rule.score(node.entropies[i], node.logprobs[i], "", ())
