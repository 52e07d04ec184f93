"""A serving engine beside a trainer: it gets the trainer's weights, and its first answers are checked against them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from task.errors import UserError
from trainer.engines.requests import Requests
from trainer.engines.sampler_check import sampling_gaps
from trainer.engines.sampling import Sampler
from trainer.engines.weights import check_adapters, has_adapter, whole_weights
from trainer.logprobs.layout_gap import LayoutGap


class WeightedRequests(Requests, Protocol):
    """A serving engine whose weights can be replaced. Nothing that the old ones computed may be found afterwards."""

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replaces all weights, given by their names in the checkpoint; a tied output layer is given too."""
        ...

    def load_adapter(self, save: Callable[[Path], None]) -> None:
        """Replaces the adapter by the one that `save` writes into a folder; the weights below it stay."""
        ...

    def wake(self) -> None:
        """Takes its memory, before weights are replaced."""
        ...

    def rest(self) -> None:
        """Gives its memory to training, where it can."""
        ...


class Serving:
    """Keeps a serving engine on the policy's weights.

    Args:
        requests: the serving engine.
        dtype: that it computes in.
        shown: whether this process prints.
    """

    def __init__(self, requests: WeightedRequests, dtype: torch.dtype, shown: bool):
        self.requests, self.dtype, self.shown = requests, dtype, shown
        self._has_base = self._checked = False

    def sync(self, model) -> None:
        """Gives the engine the weights of a bare policy.

        In float32 the sum of weight and adapter is sent. In lower precision it would round a barely trained adapter
        away, so the weights below it are sent once and the adapter alone after each step.
        """
        check_adapters(model)
        self.requests.wake()
        if not sends_adapter(model, self.dtype):
            self.requests.load(whole_weights(model))
            return
        if not self._has_base:
            with model.disable_adapter():
                self.requests.load(whole_weights(model))
            self._has_base = True
        self.requests.load_adapter(lambda folder: model.save_pretrained(folder, selected_adapters=["default"]))

    def check_once(self, model, module, sampler: Sampler, prompts: list, trees: list, policy) -> None:
        """After the first sync, compares the log-probabilities of sampled tokens with the policy's own.

        Raises UserError if they differ by more than rounding.
        """
        if self._checked:
            return
        gaps = sampling_gaps(model, module, sampler, prompts, trees, policy)
        if gaps is None:
            return
        self._checked, gap = True, LayoutGap.of(gaps)
        if self.shown:
            print(f"vLLM against the policy's own forward pass, {len(gaps)} tokens: log-probs differ by {gap}")
        fault = gap.fault(exact=self.dtype == torch.float32 and not torch.is_autocast_enabled(gaps.device.type))
        if fault is not None:
            raise UserError(
                f"use_vllm: log-probs of vLLM and of the policy differ by {gap} ({fault}), so rollouts would come from "
                "another model than the one trained. Most likely a layer of this architecture that vLLM computes "
                "differently, or a vLLM version other than those in docs/engines.md: leave use_vllm out"
            )


def sends_adapter(model, dtype: torch.dtype) -> bool:
    """Whether the adapter alone is sent after each step, instead of all weights with the adapter added."""
    return has_adapter(model) and dtype != torch.float32
