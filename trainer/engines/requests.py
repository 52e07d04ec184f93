"""What a serving engine is asked and what it answers: one request per live row, one token per row and step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from model.vlm_module import EncodedPrompt


@dataclass(frozen=True)
class FirstToken:
    """The first token of a row whose siblings start with different tokens.

    All siblings run the same exponential race over the vocabulary, and the row of rank r takes the r-th winner.

    Args:
        race: seed of the race.
        rank: of the row among its siblings, from 0.
        taken: tokens that none of them may take.
    """

    race: int
    rank: int
    taken: tuple[int, ...] = ()


@dataclass(frozen=True)
class Draw:
    """How the tokens of one request are drawn; the names are those of `Sampling`.

    Token i of the request is a function of its distribution, `seed` and i alone: neither the other requests of a step
    nor what was cached changes it.
    """

    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    first: FirstToken | None = None


@dataclass(frozen=True)
class Request:
    """Sample a continuation of `ids`.

    Args:
        name: unique over the lifetime of the serving engine.
        ids: the prompt and all tokens below it, media placeholders expanded.
        media: (index of its first token in `ids`, EncodedPrompt) of the prompt and of each observation with media.
        max_tokens: the limit; the request also ends with the first of the engine's end tokens.
        draw: how to draw.
    """

    name: str
    ids: list[int]
    media: list[tuple[int, EncodedPrompt]]
    max_tokens: int
    draw: Draw


@dataclass(frozen=True)
class Sampled:
    """One sampled token of a request; log-probability and entropy as `Sampler` defines them, in nats.

    `cached`: with the first token, how many of the request's ids were in the cache; None with the others.
    """

    name: str
    token_id: int
    logprob: float
    entropy: float
    cached: int | None = None


class Requests(Protocol):
    """A serving engine. A request that reached its limit or an end token is forgotten by it; others are aborted.

    Attributes:
        block_size: tokens per block of the prefix cache; only whole blocks are reused.
        vocab_size: rows of the output layer.
    """

    block_size: int
    vocab_size: int

    def add(self, request: Request) -> None: ...

    def step(self) -> list[Sampled]:
        """Runs one step; the requests that sampled a token, at most one each."""
        ...

    def abort(self, names: Iterable[str]) -> None:
        """Drops requests; names that are not running are ignored."""
        ...
