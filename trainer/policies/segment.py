"""What a branching policy says to an engine: sample here, fetch an observation, branch off an earlier point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.tree import KINDS


@dataclass(frozen=True)
class Segment:
    """Sample `count` continuations, each of them one node.

    Args:
        kind: kind of the new nodes, one of `trainer.tree.KINDS`.
        count: how many continuations to sample.
        max_tokens: the most tokens each of them may have.
        stop: a continuation ends with the first token after which its own decoded text contains this, or one of these;
            None: only the end of sequence or the limit ends it.
        goes_on: whether a continuation of these token ids goes on though a stop string came; None: it never does.
        temperature, top_k: of these continuations, see `Sampling`; None: the engine's.
        distinct: the first tokens of the continuations all differ (drawn without replacement), while the distribution
            has as many tokens.
        group: the tree of the forest the nodes found or join; None: their parent's, and below the prompt one each.
    """

    kind: str
    count: int
    max_tokens: int
    stop: str | tuple[str, ...] | None = None
    goes_on: Callable[[list[int]], bool] | None = None
    temperature: float | None = None
    top_k: int | None = None
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
    """Sample below a node of a tree whose rows have all ended.

    Args:
        node: index of a node, or `PROMPT`.
        segment: what to sample there.
    """

    node: int
    segment: Segment


@dataclass(frozen=True)
class Split:
    """Fork into `count` children, the one that is growing among them; their first tokens all differ if `distinct`."""

    count: int
    distinct: bool = True

    def __post_init__(self):
        assert self.count >= 2, self
