"""Pictures once: with a frozen vision tower, the features of a picture are the same in every pass of a generation."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from model.vlm_module import EncodedPrompt, VLMModule


class MediaFeatures:
    """Computes the features of each distinct picture and video of one generation once, while the trees grow.

    They are kept on the prompts and observations, where the log-prob passes find them, and are freed with these. If
    anything in the tower or the merger is trained or has an adapter, nothing is kept and every pass runs the tower.

    No pass of a frozen tower is left for the wrapped model, so under FSDP2 and ZeRO-3 no process waits for the tower's
    weights: here they are whole (`generating`).

    Args:
        model: the bare model, with whole weights.
        module: its VLMModule.
    """

    def __init__(self, model, module: VLMModule):
        self.model, self.module = model, module
        self.fixed = module.has_fixed_features(model)
        self._known: dict[str, torch.Tensor] = {}

    def add(self, prompts: Iterable[EncodedPrompt]) -> None:
        """Gives the prompts and observations their features, if these are fixed."""
        for prompt in prompts if self.fixed else ():
            if prompt.media and prompt.features is None:
                prompt.features = self.module.media_features(self.model, prompt, self._known)

    def arguments(self, prompts: list[EncodedPrompt]) -> dict:
        """Model arguments with the media of the prompts."""
        self.add(prompts)
        return self.module.batch_media(prompts, self.model.device)
