"""What goes to vLLM's sampler and comes from it, as plain values that also cross to another process or machine."""

from __future__ import annotations

from dataclasses import fields

from trainer.engines.requests import Draw, FirstToken


def extra_args(own: Draw) -> dict:
    """A `Draw` as `SamplingParams.extra_args`."""
    values = {field.name: getattr(own, field.name) for field in fields(Draw)}
    if own.first is not None:
        values["first"] = [own.first.race, own.first.rank, list(own.first.taken)]
    return values


def draw_of(values: dict) -> Draw:
    """The `Draw` that `extra_args` wrote."""
    first = values["first"]
    return Draw(**values | {"first": first and FirstToken(first[0], first[1], tuple(first[2]))})


def entropy_id(token_id, vocab_size: int):
    """Under which token's id the entropy is returned; a real one, since a detokeniser may look at it."""
    return (token_id + 1) % vocab_size


def cached_id(token_id, vocab_size: int):
    """Under which token's id the number of cached ids is returned."""
    return (token_id + 2) % vocab_size
