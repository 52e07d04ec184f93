"""The score above which the top share of tokens lies: measured on each generation, used by the next."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trainer.policies.entropy.rules import START, ForkRule, OpenText
from trainer.tree import Tree

NEWEST = 0.5  # weight of the newest generation


def threshold_of(rule: str, share: float, absolute: float | None, memory: dict) -> float:
    """The threshold of a generation; it stays as it is while the generation grows.

    Args:
        rule: name of the score, one of `RULES`.
        share: of the tokens that may fork.
        absolute: used instead of the share, in nats, if given.
        memory: what `remember` keeps; without anything in it the threshold is `START` (ln 2 nats).
    """
    if rule == "fixed":
        return 0.0
    if rule == "random":
        return 1.0 - share
    return memory.get(f"fork_{rule}", START) if absolute is None else absolute


def remember(memory: dict, rule: str, measured: float) -> None:
    """Moves the threshold kept for `rule` half the way to `measured`, the first time all the way; NaN: not at all."""
    if not math.isnan(measured):
        kept = memory.get(f"fork_{rule}", measured)
        memory[f"fork_{rule}"] = (1 - NEWEST) * kept + NEWEST * measured


def top_share(trees: list[Tree], rule: ForkRule, text: OpenText, share: float) -> float:
    """The score that `share` of the tokens drawn before the answer exceed, each token counted once; NaN without any."""
    scores = sorted((score for tree in trees for score in _scores(tree, rule, text)), reverse=True)
    return scores[int(share * len(scores))] if scores else math.nan


def _scores(tree: Tree, rule: ForkRule, text: OpenText) -> Iterator[float]:
    for node in tree.nodes:
        if node.sampled and node.status != "failed":
            above = tree.tokens(node.parent)
            for i in range(text.open_length(above, node.token_ids)):
                yield rule.score(node.entropies[i], node.logprobs[i], "", ())
