"""The sampler inside vLLM's worker: the distribution, log-probabilities and entropies of this project's `Sampler`.

vLLM draws from its own generators, applies min_p before top-k and refuses a temperature above 2, and it returns no
entropies. This sampler takes the place of vLLM's (V1 model runner) and reads `Draw` from a request's `extra_args`.
"""

# R rows, V vocabulary

from __future__ import annotations

import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.sampler import Sampler as VLLMSampler

from trainer.engines.request_sampler import RequestSampler
from trainer.engines.requests import Draw
from trainer.engines.vllm.arguments import cached_id, draw_of, entropy_id


class TreeWorker:
    """What vLLM adds to its worker class (`worker_extension_cls`); called by `collective_rpc`."""

    def use_tree_sampler(self, forbidden_ids: list[int]) -> None:
        """Replaces the sampler; tokens in `forbidden_ids` are never drawn."""
        self.model_runner.sampler = TreeSampler(self.model_runner, RequestSampler(forbidden_ids))


class TreeSampler(VLLMSampler):
    """Samples one token per row as its request's `Draw` says.

    A token comes with up to three values, as many as `logprobs` asks for and one more: its own log-probability, and in
    the place of other tokens' the entropy of its distribution (`entropy_id`), and for a request's first token how many
    of its ids were in the cache (`cached_id`).
    """

    def __init__(self, runner, sampler: RequestSampler):
        super().__init__()
        self.runner, self.sampler = runner, sampler

    def forward(self, logits: Tensor, sampling_metadata, *args, **kwargs) -> SamplerOutput:
        requests = [self.runner.requests[name] for name in self.runner.input_batch.req_ids[: len(logits)]]
        tokens, logprobs, entropies = self.sampler(
            logits,
            [drawn_by(request) for request in requests],
            [len(request.output_token_ids) for request in requests],
            lambda row: [*requests[row].prompt_token_ids, *requests[row].output_token_ids],
        )
        cached = [0 if request.output_token_ids else request.num_computed_tokens for request in requests]
        vocab_size = logits.shape[1]
        ids = torch.stack((tokens, entropy_id(tokens, vocab_size), cached_id(tokens, vocab_size)), 1).int()
        ranks = torch.ones(len(logits), dtype=torch.long, device=logits.device)
        values = torch.stack((logprobs, entropies, torch.tensor(cached, dtype=torch.float32, device=logits.device)), 1)
        return SamplerOutput(tokens.int()[:, None], LogprobsTensors(ids, values, ranks))


def drawn_by(request) -> Draw:
    """The `Draw` of one of the runner's requests, read once."""
    if not hasattr(request, "draw"):
        request.draw = draw_of(request.sampling_params.extra_args)
    return request.draw
