"""What a branching policy says to an engine: sample here, fetch an observation, branch off an earlier point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from trainer.tree import KINDS, PROMPT, Tree


@dataclass(frozen=True)
class Segment:
    """Sample `count` continuations, each of them one node.

    Args:
        kind: kind of the new nodes, one of `trainer.tree.KINDS`.
        count: how many continuations to sample.
        max_tokens: the most tokens each of them may have.
        stop: a continuation ends with the first token after which its own decoded text contains this, or one of these;
            None: only the end of sequence or the limit ends it.
        temperature: of these continuations; None: the engine's.
        distinct: the first tokens of the continuations all differ (drawn without replacement), while the distribution
            has as many tokens.
        group: the tree of the forest the nodes found or join; None: their parent's, and below the prompt one each.
    """

    kind: str
    count: int
    max_tokens: int
    stop: str | tuple[str, ...] | None = None
    temperature: float | None = None
    distinct: bool = False
    group: int | None = None

    def __post_init__(self):
        assert self.kind in KINDS, self.kind
        assert self.count >= 1 and self.max_tokens >= 1, self
        assert self.stop is None or (self.stop and "" not in self.stops), self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple, empty for none."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop or ()


@dataclass(frozen=True)
class Observed:
    """What came from outside: the tokens of one observation node (not sampled, never trained on).

    Args:
        token_ids: at least one.
        status: of the node, one of `trainer.tree.STATUSES`; `failed` ends the branch there.
        media: the EncodedPrompt of an observation with pictures (ids equal `token_ids`, positions from 0), else None.
        extra: kept on the node.
    """

    token_ids: list[int]
    status: str = "ok"
    media: Any = None
    extra: Any = None


@dataclass(frozen=True)
class Call:
    """Fetch an observation. `run` is called in a worker thread while other branches decode; it never raises.

    Every tool has its own limit of time, so `run` returns; the engine waits for it.
    """

    run: Callable[[], Observed]


@dataclass(frozen=True)
class Branch:
    """Sample below an earlier point of a tree whose rows have all ended.

    Args:
        node: index of a node, or `PROMPT`.
        segment: what to sample there.
        at: after how many of the node's tokens, as they are when `expand` is asked; None: after all of them. Fewer
            split the node, which must be a sampled leaf: its tail becomes the first child and keeps the node's status
            and extra. With `segment.distinct` the new first tokens differ from those that follow already.
    """

    node: int
    segment: Segment
    at: int | None = None

    def __post_init__(self):
        assert self.at is None or (self.node != PROMPT and self.at >= 1), self


@dataclass(frozen=True)
class Split:
    """Fork into `count` children, the one that is growing among them; their first tokens all differ if `distinct`."""

    count: int
    distinct: bool = True

    def __post_init__(self):
        assert self.count >= 2, self


class Policy(Protocol):
    """Where a rollout forks. An engine asks `start` once for each prompt and `next` once for each finished node.

    Trees of several prompts grow side by side, so what a policy remembers it keeps by tree. `expand` and `split` are
    optional: an engine asks only the policies that have them.
    """

    @property
    def leaves(self) -> int:
        """Rows one prompt gives when every node ends as the policy hopes."""

    def start(self) -> Segment:
        """What to sample right after the prompt."""

    def next(self, tree: Tree, node_index: int, ended: str) -> Segment | Call | None:
        """What follows a finished node; None makes it a leaf. May set `tree.nodes[node_index].status`.

        `ended` is how the node ended: "stop" (a stop string came), "eos", "length" (cut at its limit), or "observed"
        (it is an observation, and did not fail).
        """

    def expand(self, tree: Tree) -> list[Branch]:
        """Asked when all rows of a tree have ended, and again after what it returned has ended; empty: it is done.

        A branch at the prompt's end or behind a node that a segment followed costs no forward pass of what is above it;
        one inside a node feeds the one token before it again. Branches are not asked about each other: two at the same
        point may begin alike.
        """

    def split(self, tree: Tree, node_index: int, token_ids: list[int], entropy: float, logprob: float) -> Split | None:
        """Whether to fork in the middle of a node that is growing, before its newest token (`token_ids[-1]`).

        `entropy` and `logprob` are of the distribution that token was drawn from, in nats. Asked at every token for
        which `candidates(entropies, logprobs)`, a bool tensor (R,) of the live rows, is True; within a step the higher
        entropy first. The node then ends before the token (unless it has no other), the token begins the first child,
        and the others draw their first token from the same distribution; each child may have as many tokens as the node
        had left.
        """
