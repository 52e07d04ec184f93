"""From logits to sampled tokens, with the log-probability and entropy of the distribution they were drawn from."""

# R rows, V vocabulary

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from task.errors import UserError
from trainer.engines.host_copies import upload_once

BLOCK = 256


@dataclass(frozen=True)
class Sampling:
    """Settings of the sampler. The checkpoint's own generation_config is ignored.

    Args:
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keeps the k most likely tokens; 0 keeps all.
        top_p: keeps the fewest most likely tokens whose probabilities add up to at least this; 1.0 keeps all.
        min_p: drops tokens less likely than this times the most likely one; 0.0 drops none.
        repetition_penalty: divides the positive and multiplies the negative logits of tokens that occur in the row or
            its prompt.

    With temperature alone, rollouts are sampled from the policy that is trained; all other settings change the sampled
    distribution.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self):
        rules = {
            "temperature": (0 <= self.temperature < math.inf, "0 or more and finite (0 is greedy)"),
            "top_k": (self.top_k >= 0, "0 or more (0 keeps all tokens)"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1 (1 keeps all tokens)"),
            "min_p": (0 <= self.min_p <= 1, "between 0 and 1 (0 keeps all tokens)"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "above 0 and finite (1 changes nothing)"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise UserError(f"{name} is {getattr(self, name)}: it must be {rule}.")


class Sampler:
    """Draws one token per row from torch's default generator.

    Args:
        sampling: the settings.
        forbidden_ids: tokens that are never drawn (vision placeholders, padding); their probability is 0.
    """

    def __init__(self, sampling: Sampling, forbidden_ids: Iterable[int] = ()):
        self.sampling = sampling
        self.forbidden = torch.tensor(sorted(forbidden_ids), dtype=torch.long)

    def __call__(
        self,
        logits: Tensor,
        history: Tensor | None = None,
        temperature: Sequence[float] | None = None,
        top_k: Sequence[int] | None = None,
        distinct: Sequence[tuple[list[int], Sequence[int]]] = (),
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Token, log-probability and entropy of each row, in nats and float32.

        Args:
            logits: (R, V), any float type.
            history: (R, T) ids that the repetition penalty applies to; needed only if the penalty is not 1.
            temperature, top_k: of each row, replace those in the settings.
            distinct: (rows, taken) pairs: these rows, which have equal logits, draw without replacement and avoid the
                tokens in `taken`. If the distribution has too few tokens, the remaining rows draw independently.

        Log-probability and entropy are those of the sampled distribution (for distinct rows, before tokens are
        excluded); at temperature 0, of the unscaled one. Nothing is read by the host. If a row's logits are NaN or
        infinite, its log-probability is NaN (`read` refuses it).
        """
        log_probs, greedy = self.distribution(logits, history, temperature, top_k)
        probs = log_probs.exp()
        tokens = log_probs.argmax(-1, keepdim=True) if greedy is True else draw(probs)
        if isinstance(greedy, Tensor):
            tokens = torch.where(greedy, log_probs.argmax(-1, keepdim=True), tokens)
        for rows, taken in distinct:
            usual = self.sampling.temperature if temperature is None else temperature[rows[0]]
            others, found = without_replacement(probs[rows[0]], len(rows), taken, greedy=usual == 0)
            for row, other, is_found in zip(rows, others, found, strict=False):
                tokens[row, 0] = torch.where(is_found, other, tokens[row, 0])
        return tokens.squeeze(1), log_probs.gather(1, tokens).squeeze(1), torch.special.entr(probs).sum(-1)

    def distribution(
        self,
        logits: Tensor,
        history: Tensor | None = None,
        temperature: Sequence[float] | None = None,
        top_k: Sequence[int] | None = None,
    ) -> tuple[Tensor, bool | Tensor]:
        """Log-probabilities (R, V) to draw from, and which rows (R, 1) take the most likely token; as in a call."""
        scores = logits.float()
        if history is not None:
            scores = _penalise(scores, history, self.sampling.repetition_penalty)
        if len(self.forbidden):
            self.forbidden = self.forbidden.to(scores.device)
            scores = scores.index_fill(1, self.forbidden, float("-inf"))
        scores, greedy = self._tempered(scores, temperature, self.sampling.top_k if top_k is None else top_k)
        return scores.log_softmax(-1), greedy

    def _tempered(
        self, scores: Tensor, temperature: Sequence[float] | None, top_k: int | Sequence[int]
    ) -> tuple[Tensor, bool | Tensor]:
        """Scores to draw from, and which rows (R, 1) take the most likely token (a single bool if all agree)."""
        if temperature is not None:
            heat = upload_once(tuple(temperature), scores.device)[:, None]
            greedy = heat == 0
            narrowed = _narrow(scores / heat.masked_fill(greedy, 1.0), self.sampling, top_k)
            return torch.where(greedy, scores, narrowed), greedy
        if self.sampling.temperature == 0:
            return scores, True
        return _narrow(scores / self.sampling.temperature, self.sampling, top_k), False


def read(tokens: Tensor, logprobs: Tensor, entropies: Tensor) -> tuple[list[int], np.ndarray, np.ndarray]:
    """What `Sampler` drew, (R,) each, on the host: one copy, exact. Raises UserError if a log-probability is NaN."""
    rows = torch.stack([tokens.int(), logprobs.view(torch.int32), entropies.view(torch.int32)]).cpu().numpy()
    logprobs, entropies = rows[1:].view(np.float32)
    refuse_nan(logprobs)
    return rows[0].tolist(), logprobs, entropies


def refuse_nan(logprobs: np.ndarray) -> None:
    """Raises UserError if a log-probability is NaN."""
    if np.isnan(logprobs).any():
        raise UserError(
            "the model's logits are NaN or infinite: its weights diverged or are damaged; go back to an earlier "
            "checkpoint, and lower learning_rate if it was trained here"
        )


def without_replacement(
    probs: Tensor, count: int, taken: Sequence[int], greedy: bool, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """`count` different indices of (V,) weights, one after the other, and which of them are draws (not in `taken`).

    The index with the largest ratio of weight to an exponential random number is one draw; the next largest are draws
    from the remaining indices (an exponential race, equivalent to Gumbel top-k).
    """
    weights = probs.clone()
    for token in taken:
        weights[token] = 0
    race = weights if greedy else weights / torch.empty_like(weights).exponential_(generator=generator)
    others = race.topk(min(count, len(weights))).indices
    return others, weights[others] > 0


def _penalise(scores: Tensor, history: Tensor, penalty: float) -> Tensor:
    seen = scores.gather(1, history)
    return scores.scatter(1, history, torch.where(seen < 0, seen * penalty, seen / penalty))


def _narrow(scores: Tensor, sampling: Sampling, top_k: int | Sequence[int]) -> Tensor:
    """Applies top_k (of all rows, or of each row), top_p and min_p, in this order; dropped tokens get -inf."""
    kept = (top_k,) if isinstance(top_k, int) else tuple(top_k)
    kept = tuple(min(k, scores.shape[1]) or scores.shape[1] for k in kept)
    if min(kept) < scores.shape[1]:
        last = upload_once(kept, scores.device).long()[:, None] - 1
        least = scores.topk(max(kept)).values.gather(1, last.expand(len(scores), 1))
        scores = scores.masked_fill(scores < least, float("-inf"))
    if sampling.top_p < 1:
        probs, order = scores.softmax(-1).sort(descending=True)
        dropped = probs.cumsum(-1) - probs >= sampling.top_p
        scores = scores.masked_fill(torch.zeros_like(dropped).scatter(1, order, dropped), float("-inf"))
    if sampling.min_p > 0:
        probs = scores.softmax(-1)
        scores = scores.masked_fill(probs < sampling.min_p * probs.amax(-1, keepdim=True), float("-inf"))
    return scores


def draw(probs: Tensor, uniform: Tensor | None = None) -> Tensor:
    """One index per row, (R, V) weights -> (R, 1): first a block of the vocabulary, then a token in the block.

    `uniform`: (R, 2) float64 numbers in [0, 1) to draw with, in place of torch's default generator.

    torch.multinomial draws one random number per vocabulary entry, which takes 49 ms for 16 rows of 152 k tokens on a
    CPU core; two numbers per row take 1.2 ms.
    """
    blocks = F.pad(probs, (0, -probs.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    if uniform is None:
        uniform = torch.rand(2, len(probs), dtype=torch.float64, device=probs.device).T
    block = _invert(blocks.sum(-1), uniform[:, :1])
    inside = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, BLOCK)).squeeze(1)
    return (block * BLOCK + _invert(inside, uniform[:, 1:])).clamp(max=probs.shape[1] - 1)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Inverse of the cumulative distribution at one uniform number per row; never returns an index of weight 0.

    `uniform`: (R, 1), float64.
    In float64 the number times the total stays below the total, so the index exists; `right=True` skips indices of
    weight 0, whose cumulative sum equals their predecessor's. Weights that are NaN give the last index.
    """
    sums = weights.cumsum(-1, dtype=torch.float64)
    at = uniform * sums[:, -1:]
    return torch.searchsorted(sums, at, right=True).clamp(max=weights.shape[1] - 1)
