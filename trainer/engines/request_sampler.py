"""Draws the tokens of requests: each is a function of its distribution, its request's seed and its number alone."""

# R rows, V vocabulary

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainer.engines.requests import Draw
from trainer.engines.sampling import Sampler, Sampling, draw, without_replacement

SHARED = ("top_p", "min_p", "repetition_penalty")  # settings that the rows of one call of `Sampler` share


class RequestSampler:
    """Samples one token per row, as each row's `Draw` says.

    Args:
        forbidden_ids: tokens that are never drawn.
    """

    def __init__(self, forbidden_ids: list[int]):
        self.forbidden_ids = forbidden_ids
        self._samplers: dict[tuple, Sampler] = {}

    def __call__(
        self, logits: Tensor, draws: Sequence[Draw], counts: Sequence[int], path: Callable[[int], list[int]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, log-probabilities and entropies (R,), as `Sampler` defines them.

        Args:
            logits: (R, V).
            counts: how many tokens each request has sampled so far.
            path: row -> all ids before its token; asked only under a repetition penalty.
        """
        alike: dict[tuple, list[int]] = {}
        for row, one in enumerate(draws):
            alike.setdefault(tuple(getattr(one, name) for name in SHARED), []).append(row)
        found = [self._alike(shared, rows, logits, draws, counts, path) for shared, rows in alike.items()]
        if len(found) == 1:  # the usual case, without copies
            return found[0]
        order = torch.tensor([row for rows in alike.values() for row in rows]).argsort().to(logits.device)
        return tuple(torch.cat(values)[order] for values in zip(*found, strict=True))

    def _history(self, paths: list[list[int]], device) -> Tensor:
        longest = max(map(len, paths))
        return torch.tensor([path[:1] * (longest - len(path)) + path for path in paths], device=device)

    def _alike(self, shared: tuple, rows: list[int], logits: Tensor, draws, counts, path) -> tuple[Tensor, ...]:
        """Of rows with equal `SHARED` settings."""
        history = self._history([path(row) for row in rows], logits.device) if shared[2] != 1 else None
        if len(rows) < len(logits):
            logits, draws, counts = logits[rows], [draws[row] for row in rows], [counts[row] for row in rows]
        if shared not in self._samplers:
            self._samplers[shared] = Sampler(Sampling(**dict(zip(SHARED, shared, strict=True))), self.forbidden_ids)
        heat, top_k = [one.temperature for one in draws], [one.top_k for one in draws]
        log_probs, greedy = self._samplers[shared].distribution(logits, history, heat, top_k)
        probs, best = log_probs.exp(), log_probs.argmax(-1, keepdim=True)
        numbers = [uniforms(one.seed, count) for one, count in zip(draws, counts, strict=True)]
        uniform = torch.tensor(numbers, dtype=torch.float64).to(logits.device)
        tokens = torch.where(torch.as_tensor(greedy, device=logits.device), best, draw(probs, uniform))
        for row, (one, count) in enumerate(zip(draws, counts, strict=True)):
            if one.first is not None and count == 0:
                tokens[row, 0] = first_token(probs[row], one, tokens[row, 0])
        return tokens.squeeze(1), log_probs.gather(1, tokens).squeeze(1), torch.special.entr(probs).sum(-1)


def first_token(probs: Tensor, own: Draw, otherwise: Tensor) -> Tensor:
    """The row's winner of its siblings' race over (V,) weights; `otherwise` if too few tokens are left."""
    generator = torch.Generator(probs.device).manual_seed(own.first.race)
    count, greedy = own.first.rank + 1, own.temperature == 0
    winners, found = without_replacement(probs, count, own.first.taken, greedy, generator)
    return torch.where(found[-1], winners[-1], otherwise) if len(winners) == count else otherwise


def uniforms(seed: int, count: int) -> tuple[float, float]:
    """The two numbers in [0, 1) that decide token `count` of a request.

    >>> uniforms(7, 0) == uniforms(7, 0) != uniforms(7, 1)
    True
    """
    digest = hashlib.blake2b(seed.to_bytes(8, "big") + count.to_bytes(4, "big"), digest_size=16).digest()
    return tuple((int.from_bytes(half, "big") >> 11) / 2**53 for half in (digest[:8], digest[8:]))
