"""A branching policy's instructions to an engine: sample, fetch an observation, branch off an earlier point, split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.tree import KINDS


@dataclass(frozen=True)
class Segment:
    """Sample `count` continuations, each of which becomes one node.

    Args:
        kind: kind of the new nodes, one of `trainer.tree.KINDS`.
        count: how many continuations to sample.
        max_tokens: maximum tokens per continuation.
        stop: stop string or strings; a continuation ends with the first token after which its decoded text contains one
            of them. None: it ends only at the end of sequence or the limit.
        goes_on: token ids -> whether a continuation goes on despite a stop string; None: it never does.
        temperature, top_k: of these continuations, see `Sampling`; None: the engine's.
        distinct: the continuations start with different tokens (sampled without replacement), as far as the
            distribution has enough tokens.
        group: the tree of the forest that the nodes start or join; None: their parent's, or, below the prompt, a new
            tree for each.
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
    """The result of a `Call`: the tokens of one observation node (not sampled, never trained on).

    Args:
        token_ids: at least one.
        status: of the node, one of `trainer.tree.STATUSES`; `failed` ends the branch.
        media: the EncodedPrompt of an observation with pictures (ids equal `token_ids`, positions from 0), else None.
        extra: stored on the node.
        reward: of the turn that it answers.
    """

    token_ids: list[int]
    status: str = "ok"
    media: Any = None
    extra: Any = None
    reward: float = 0.0


@dataclass(frozen=True)
class Call:
    """Fetch an observation. `run` is called in a worker thread while other branches decode; it never raises.

    Every tool has its own time limit, so `run` always returns; the engine waits for it.
    """

    run: Callable[[], Observed]


@dataclass(frozen=True)
class Branch:
    """Sample below a node of a tree in which all rows have ended.

    Args:
        node: index of a node, or `PROMPT`.
        segment: what to sample there.
    """

    node: int
    segment: Segment


@dataclass(frozen=True)
class Split:
    """Fork into `count` children, the growing one included; if `distinct`, they start with different tokens."""

    count: int
    distinct: bool = True

    def __post_init__(self):
        assert self.count >= 2, self
