"""The vision-language models of Qwen."""

from __future__ import annotations

import torch
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from model.vision_language import VisionLanguageModule


class Qwen2VLModule(VisionLanguageModule):
    """Qwen2-VL of any size; pixel limits apply to each frame of a video too."""

    def _limited(self, processor):
        return [processor.image_processor, processor.video_processor]


class Qwen2_5VLModule(Qwen2VLModule):
    """Qwen2.5-VL of any size. Its answers are in pixels of the processed picture."""


class Qwen3VLModule(VisionLanguageModule):
    """Qwen3-VL and its mixture of experts: features of several blocks of the tower enter the first layers.

    The features of an item are one tensor (1 + deepstack layers, tokens, hidden), the usual ones first.
    """

    def _features(self, output):
        layers = [output.pooler_output, *output.deepstack_features]
        return torch.stack([torch.cat(list(features)) for features in layers])

    def _as_output(self, features):
        first, *layers = zip(*(each.unbind() for each in features), strict=True)
        return BaseModelOutputWithDeepstackFeatures(pooler_output=first, deepstack_features=layers)
