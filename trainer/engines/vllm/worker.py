"""The sampler inside vLLM's worker: the distribution, log-probabilities and entropies of this project's `Sampler`.

vLLM draws from its own generators, applies min_p before top-k and refuses a temperature above 2, and it returns no
entropies. This sampler takes the place of vLLM's (V1 model runner) and reads `Draw` from a request's `extra_args`.
"""

# R rows, V vocabulary

from __future__ import annotations

import hashlib

import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.sampler import Sampler as VLLMSampler

from trainer.engines.requests import Draw
from trainer.engines.sampling import Sampler, Sampling, draw, without_replacement
from trainer.engines.vllm.arguments import cached_id, draw_of, entropy_id

SHARED = ("top_p", "min_p", "repetition_penalty")  # settings that the rows of one call of `Sampler` share


class TreeWorker:
    """What vLLM adds to its worker class (`worker_extension_cls`); called by `collective_rpc`."""

    def use_tree_sampler(self, forbidden_ids: list[int]) -> None:
        """Replaces the sampler; tokens in `forbidden_ids` are never drawn."""
        self.model_runner.sampler = TreeSampler(self.model_runner, forbidden_ids)


class TreeSampler(VLLMSampler):
    """Samples one token per row as its request's `Draw` says.

    A token comes with up to three values, as many as `logprobs` asks for and one more: its own log-probability, and in
    the place of other tokens' the entropy of its distribution (`entropy_id`), and for a request's first token how many
    of its ids were in the cache (`cached_id`).
    """

    def __init__(self, runner, forbidden_ids: list[int]):
        super().__init__()
        self.runner, self.forbidden_ids = runner, forbidden_ids
        self._samplers: dict[tuple, Sampler] = {}

    def forward(self, logits: Tensor, sampling_metadata, *args, **kwargs) -> SamplerOutput:
        names = self.runner.input_batch.req_ids[: len(logits)]
        requests = [self.runner.requests[name] for name in names]
        draws = [draw_of(request.sampling_params.extra_args) for request in requests]
        alike: dict[tuple, list[int]] = {}
        for row, one in enumerate(draws):
            alike.setdefault(tuple(getattr(one, name) for name in SHARED), []).append(row)
        tokens, logprobs, entropies = (torch.zeros(len(logits), device=logits.device) for _ in range(3))
        tokens = tokens.long()
        for shared, rows in alike.items():
            own = logits if len(rows) == len(logits) else logits[rows]
            sampled = self._sample(shared, own, *([of[row] for row in rows] for of in (requests, draws)))
            for values, found in zip((tokens, logprobs, entropies), sampled, strict=True):
                values[rows] = found
        cached = [0 if request.output_token_ids else request.num_computed_tokens for request in requests]
        vocab_size = logits.shape[1]
        ids = torch.stack((tokens, entropy_id(tokens, vocab_size), cached_id(tokens, vocab_size)), 1).int()
        ranks = torch.ones(len(logits), dtype=torch.long, device=logits.device)
        values = torch.stack((logprobs, entropies, torch.tensor(cached, dtype=torch.float32, device=logits.device)), 1)
        return SamplerOutput(tokens.int()[:, None], LogprobsTensors(ids, values, ranks))

    def _sample(self, shared: tuple, logits: Tensor, requests: list, draws: list[Draw]) -> tuple[Tensor, ...]:
        """Tokens, log-probabilities and entropies (R,) of rows with equal `SHARED` settings."""
        if shared not in self._samplers:
            self._samplers[shared] = Sampler(Sampling(**dict(zip(SHARED, shared, strict=True))), self.forbidden_ids)
        sampler, history = self._samplers[shared], None
        if sampler.sampling.repetition_penalty != 1:
            paths = [[*request.prompt_token_ids, *request.output_token_ids] for request in requests]
            longest = max(map(len, paths))
            history = torch.tensor([path[:1] * (longest - len(path)) + path for path in paths], device=logits.device)
        heat, top_k = [one.temperature for one in draws], [one.top_k for one in draws]
        log_probs, greedy = sampler.distribution(logits, history, heat, top_k)
        probs = log_probs.exp()
        counts = [len(request.output_token_ids) for request in requests]
        uniform = torch.tensor([uniforms(one.seed, count) for one, count in zip(draws, counts, strict=True)])
        tokens = draw(probs, uniform.to(logits.device, torch.float64))
        tokens = torch.where(greedy, log_probs.argmax(-1, keepdim=True), tokens)
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
