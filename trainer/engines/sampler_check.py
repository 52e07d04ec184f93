"""Whether a serving engine samples from the policy: its log-probabilities against the policy's own forward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from model.vlm_module import EncodedPrompt, VLMModule
from trainer.engines.sampling import Sampler
from trainer.policies.policy import Policy
from trainer.tree import PROMPT, Node, Tree

ROWS = 4


def sampling_gaps(
    model, module: VLMModule, sampler: Sampler, prompts: list, trees: list[Tree], policy: Policy
) -> Tensor | None:
    """(tokens,) differences between sampled and recomputed log-probabilities of up to four first segments.

    They are those of one prompt, with media if there is one. None if nothing was sampled.

    Args:
        model: the bare policy, in eval mode and with whole weights.
        sampler: with the settings that the trees were sampled with.
        prompts, trees, policy: as grown; None for a prompt that could not be read.
    """
    pairs = [(prompt, tree) for prompt, tree in zip(prompts, trees, strict=True) if prompt is not None]
    if not pairs or sampler.sampling.repetition_penalty != 1:
        return None
    prompt, tree = max(pairs, key=lambda pair: bool(pair[0].media))
    roots = [node for node in tree.nodes if node.parent == PROMPT and node.sampled][:ROWS]
    return torch.cat([_gaps(model, module, sampler, prompt, root, policy.start()) for root in roots])


def _gaps(model, module: VLMModule, sampler: Sampler, prompt: EncodedPrompt, root: Node, segment) -> Tensor:
    """(T,) differences of one segment that follows the prompt."""
    count = len(root.token_ids)
    ids = torch.tensor([[*prompt.ids, *root.token_ids]], device=model.device)
    after = torch.arange(count).expand(*prompt.position_ids.shape[:-1], -1) + prompt.next_position
    positions = torch.cat([prompt.position_ids, after], -1).unsqueeze(-2).to(model.device)
    media = module.batch_media([prompt], model.device)
    logits = model(input_ids=ids, position_ids=positions, use_cache=False, **media).logits[0, -count - 1 : -1]
    usual = sampler.sampling
    heat = [usual.temperature if segment.temperature is None else segment.temperature] * count
    top_k = [usual.top_k if segment.top_k is None else segment.top_k] * count
    log_probs, _ = sampler.distribution(logits, temperature=heat, top_k=top_k)
    recomputed = log_probs.gather(1, ids[0, -count:, None])[:, 0]
    return recomputed - torch.tensor(root.logprobs, device=recomputed.device)
