"""Importance sampling between the engine that sampled a completion and the policy that trains on it.

An engine of its own (vLLM) computes log-probs with other kernels, and perhaps in another precision, than the trainer.
Each token's policy term is therefore weighted by pi_old / pi_sampled, bounded as TRL's `vllm_importance_sampling_*`
settings say. The weight enters through the advantages: TRL multiplies its per-token loss by it, which is linear in the
advantage for every supported loss, and the KL term, which contains no advantage, keeps its value.
"""

# B rows of a micro-batch, T completion tokens

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

ADVANTAGES = ("advantages", "thought_advantages", "answer_advantages")


@dataclass(frozen=True)
class SamplingCorrection:
    """The bounds of a token's weight, as in TRL.

    Attributes:
        mode: token_truncate clamps the weight to the bounds, token_mask sets a weight outside of them to 0.
        low, high: the bounds; None for no bound.
    """

    mode: str
    low: float | None
    high: float | None

    @classmethod
    def of(cls, args) -> SamplingCorrection | None:
        """The correction of a GRPOConfig; None if the trainer's own model samples, or if it is switched off."""
        if not (args.use_vllm and args.vllm_importance_sampling_correction):
            return None
        bounds = (args.vllm_importance_sampling_clip_min, args.vllm_importance_sampling_clip_max)
        return cls(args.vllm_importance_sampling_mode, *bounds)

    def weights(self, old: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """(B, T) weights, without gradient; 1 where the sampler gave no log-prob (NaN).

        Args:
            old: (B, T) log-probs of the policy before the update.
            sampled: (B, T) log-probs of the distribution that was sampled from.
        """
        weights = torch.nan_to_num(old.detach() - sampled, nan=0.0).exp()
        if self.mode == "token_truncate":
            return weights.clamp(self.low, self.high)
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        return weights.masked_fill((weights < low) | (weights > high), 0.0)


def corrected(inputs: dict, old: torch.Tensor, correction: SamplingCorrection | None) -> dict:
    """The inputs of the loss with every part's advantages, then (B, T), multiplied by the weights of `correction`.

    `old`: (B, T) as in `SamplingCorrection.weights`. Without a correction the inputs are returned as they are.
    """
    if correction is None:
        return inputs
    weights = correction.weights(old, inputs["sampling_per_token_logps"])
    found = {name: inputs[name] for name in ADVANTAGES if name in inputs}
    return inputs | {name: (a[:, None] if a.dim() == 1 else a) * weights for name, a in found.items()}
