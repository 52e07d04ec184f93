"""LoRA merged into the base weights while rollouts are sampled: one matrix product per layer instead of three."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import torch
from peft.tuners.lora import Linear


@contextmanager
def merged_lora(model):
    """Inside the block, float32 LoRA layers compute with W + BA; afterwards W is restored bit for bit.

    Only plain float32 weights are merged: in bfloat16 the sum would round off most of a barely trained adapter, and the
    rollouts would come from a policy other than the one trained. Quantised, sharded and DoRA layers are left alone, and
    so are weights shared with other layers: an adapter on the LM head must not change tied embeddings.
    """
    kept = []
    holders = Counter(id(weight) for layer in model.modules() for weight in layer.parameters(recurse=False))
    try:
        for layer in model.modules():
            if _can_fold(layer) and holders[id(layer.get_base_layer().weight)] == 1:
                weight = layer.get_base_layer().weight
                kept.append((layer, weight, weight.data))
                weight.data = weight.data + sum(layer.get_delta_weight(name) for name in layer.active_adapters)
                layer.merged_adapters.extend(layer.active_adapters)
        yield
    finally:
        for layer, weight, original in kept:
            weight.data = original
            layer.merged_adapters.clear()


def _can_fold(layer) -> bool:
    if not isinstance(layer, Linear) or layer.merged or layer.disable_adapters or layer.lora_variant:
        return False
    if any(layer.lora_bias.values()):  # the delta weight does not include it
        return False
    weight = layer.get_base_layer().weight
    plain = type(weight) is torch.nn.Parameter and weight.dtype == torch.float32 and not hasattr(weight, "ds_id")
    return plain and all(name in layer.lora_A for name in layer.active_adapters)
