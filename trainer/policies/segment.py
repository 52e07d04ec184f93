"""What a branching policy says to an engine: sample so many continuations of this kind, here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trainer.tree import KINDS, Tree


@dataclass(frozen=True)
class Segment:
    """Sample `count` continuations, each of them one node.

    Args:
        kind: kind of the new nodes, one of `trainer.tree.KINDS`.
        count: how many continuations to sample.
        max_tokens: the most tokens each of them may have.
        stop: a continuation ends with the first token after which its own decoded text contains this; None: only the
            end of sequence or the limit ends it.
    """

    kind: str
    count: int
    max_tokens: int
    stop: str | None = None

    def __post_init__(self):
        assert self.kind in KINDS, self.kind
        assert self.count >= 1 and self.max_tokens >= 1 and self.stop != "", self


class Policy(Protocol):
    """Where a rollout forks. An engine asks `start` once for each prompt and `next` once for each finished node.

    A policy keeps no state between calls: trees of several prompts grow side by side.
    """

    @property
    def leaves(self) -> int:
        """Rows one prompt gives when every node ends as the policy hopes."""

    def start(self) -> Segment:
        """What to sample right after the prompt."""

    def next(self, tree: Tree, node_index: int, ended: str) -> Segment | None:
        """What to sample after a finished node; None makes it a leaf. May set `tree.nodes[node_index].status`.

        `ended` is how the node ended: "stop" (its stop string came), "eos" or "length" (cut at its limit).
        """
