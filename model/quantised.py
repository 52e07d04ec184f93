"""4-bit and 8-bit base weights by bitsandbytes: where they are loaded, what they were, and one arithmetic on a CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

FILE = "quantization.json"  # beside an adapter: how the base weights were quantised that it was trained on


def device_map_of(quantization_config) -> dict | None:
    """Quantised weights cannot be moved later, so each process loads them onto its own GPU."""
    if quantization_config is None or not torch.cuda.is_available():
        return None
    from accelerate import PartialState

    return {"": PartialState().local_process_index}


def is_quantised(model) -> bool:
    return getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False)


def quantisation_of(model) -> dict | None:
    """How a model's base weights are quantised, as BitsAndBytesConfig has it; None for a model that is not."""
    return model.config.quantization_config.to_dict() if is_quantised(model) else None


def save_quantisation(model, folder: str | Path) -> None:
    """Writes `quantisation_of` beside an adapter, if the model is quantised."""
    if is_quantised(model):
        (Path(folder) / FILE).write_text(json.dumps(quantisation_of(model)), encoding="utf-8")


def saved_quantisation(folder: str | Path) -> dict | None:
    """How the base weights were quantised that an adapter was trained on; None for float weights."""
    file = Path(folder) / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def in_words(quantisation: dict | None) -> str:
    """What the base weights are.

    >>> in_words({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}), in_words({"load_in_8bit": True}), in_words(None)
    ('4-bit weights (nf4)', '8-bit weights', 'float weights')
    """
    if quantisation is None:
        return "float weights"
    if quantisation.get("load_in_4bit"):
        return f"4-bit weights ({quantisation['bnb_4bit_quant_type']})"
    return "8-bit weights"


def weights_in(parameter) -> int:
    """The number of weights of a parameter; two 4-bit ones are stored in a byte."""
    state = getattr(parameter, "quant_state", None)
    return getattr(parameter, "ds_numel", parameter.numel()) if state is None else math.prod(state.shape)


def keep_one_arithmetic(model) -> None:
    """Makes 4-bit layers on a CPU compute the same in evaluation and in training mode.

    On a CPU with AVX512-BF16, bitsandbytes 0.50 repacks the weights for good in the first pass in evaluation mode, with
    scales in bfloat16 and a product that has no gradient: rollouts would come from another policy than the one trained
    (logits of the demo model moved by 0.12), and layers below would get no gradient. It also fails for layers whose
    number of inputs is no multiple of 64.
    """
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
