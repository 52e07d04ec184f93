"""The policy's weights as a checkpoint would hold them: names without wrappers, adapters added, nothing changed."""

from __future__ import annotations

from collections.abc import Iterator

from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor

from task.errors import UserError

WAY_OUT = "leave use_vllm out, or use plain LoRA on linear layers"


def has_adapter(model) -> bool:
    return any(isinstance(layer, BaseTunerLayer) for layer in model.modules())


def check_adapters(model) -> None:
    """Raises UserError for an adapter whose sum with its base weight is not one matrix of full precision."""
    for name, layer in model.named_modules():
        if not isinstance(layer, BaseTunerLayer):
            continue
        kind = type(layer.get_base_layer()).__name__
        if not isinstance(layer, LoraLinear):
            raise UserError(f"use_vllm: the adapter of {name} ({kind}) cannot be sent to vLLM: {WAY_OUT}")
        if layer.lora_variant or any(layer.lora_bias.values()):
            raise UserError(f"use_vllm: the adapter of {name} is DoRA or has a bias of its own: {WAY_OUT}")


def whole_weights(model) -> Iterator[tuple[str, Tensor]]:
    """(name, weight) of every weight of a bare policy, LoRA added; of a tied output layer too.

    Sums are computed one at a time and outside the model, whose weights stay as they are, bit for bit.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    lora = {name: layer for name, layer in base.named_modules() if isinstance(layer, BaseTunerLayer)}
    copies = {name for name, layer in base.named_modules() if isinstance(layer, AuxiliaryTrainingWrapper)}
    names = set()
    for name, weight in base.named_parameters():
        owner, inside, leaf = name.rpartition(".base_layer.")
        if inside:
            name, layer = f"{owner}.{leaf}", lora[owner]
            if leaf == "weight" and not layer.disable_adapters:
                weight = weight + sum(layer.get_delta_weight(adapter) for adapter in layer.active_adapters)
        elif any(name.startswith(f"{adapted}.") for adapted in lora):
            continue
        elif owner := next((owner for owner in copies if name.startswith(f"{owner}.")), None):
            _, _, leaf = name.partition(f"{owner}.modules_to_save.default.")
            if not leaf:
                continue
            name = f"{owner}.{leaf}"
        names.add(name)
        yield name, weight.detach()
    head = base.get_output_embeddings()
    if "lm_head.weight" not in names and head is not None:
        yield "lm_head.weight", head.weight.detach()
