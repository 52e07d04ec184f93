"""Numbers of parameters and features of a model, counted on its architecture without allocating weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from peft.tuners.tuners_utils import check_target_module_exists
from transformers import AutoConfig, PretrainedConfig

from model.registry import module_for
from task.errors import UserError

CONFIGS = Path(__file__).parent / "configs"


@dataclass(frozen=True)
class Linear:
    """A linear layer of the language model that LoRA targets."""

    inputs: int
    outputs: int


@dataclass(frozen=True)
class ModelSizes:
    """What the estimate needs to know about a model.

    Attributes:
        parameters: all of them; tied weights count once.
        trained_in_full: those of the language model.
        quantisable: weights of the linear layers that bitsandbytes quantises (all but the LM head).
        largest_linear: weights of the largest of these layers.
        targets: the linear layers that LoRA targets.
        vision_features: bytes per patch that the vision tower holds at once in 2-byte floats; 0 without a tower.
        pixels_per_token: pixels of a picture per visual token; 0 without a tower.
    """

    parameters: int
    trained_in_full: int
    quantisable: int
    largest_linear: int
    targets: tuple[Linear, ...]
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    vision_features: int
    pixels_per_token: int


def read_config(model: str) -> PretrainedConfig:
    """The config of a folder, a config.json, or one of the shipped configs by its name."""
    shipped = CONFIGS / f"{Path(model).name}.json"
    path = Path(model)
    if not path.exists() and shipped.is_file():
        path = shipped
    try:
        return AutoConfig.from_pretrained(path if path.exists() else model)
    except (OSError, ValueError) as error:
        known = ", ".join(sorted(file.stem for file in CONFIGS.glob("*.json")))
        raise UserError(
            f"no model config could be read from {model!r} ({str(error).splitlines()[0]}): give a folder, a "
            f"config.json, or one of {known}"
        ) from error


def count(config: PretrainedConfig, vision_lora: bool = False) -> ModelSizes:
    """Builds the model on torch's meta device, which allocates nothing, and counts."""
    module = module_for(config)
    with torch.device("meta"):
        model = module.auto_class.from_config(config)
    text, vision = config.get_text_config(), getattr(config, "vision_config", None)
    pattern = module.lora_target_modules(model, vision=vision_lora)
    wanted = _Targets(pattern)
    linears = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    head = model.get_output_embeddings()
    quantised = [layer.weight.numel() for layer in linears.values() if layer is not head]
    adapted = [layer for name, layer in linears.items() if check_target_module_exists(wanted, name)]
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    language = [size for name, size in sizes.items() if module.tower_of(name) == "language"]
    width = getattr(vision, "embed_dim", None) or getattr(vision, "hidden_size", 0)  # Qwen2-VL has both
    intermediate = getattr(vision, "intermediate_size", None) or 4 * width
    return ModelSizes(
        parameters=sum(sizes.values()),
        trained_in_full=sum(language),
        quantisable=sum(quantised),
        largest_linear=max(quantised),
        targets=tuple(Linear(layer.in_features, layer.out_features) for layer in adapted),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        vocab=text.vocab_size,
        vision_features=2 * (6 * width + 3 * intermediate) if vision else 0,
        pixels_per_token=_pixels_per_token(config, vision) if vision else 0,
    )


def _pixels_per_token(config: PretrainedConfig, vision: PretrainedConfig) -> int:
    """Pixels of a picture per visual token: patches, merged where the family merges them."""
    side = vision.patch_size if isinstance(vision.patch_size, int) else vision.patch_size[0]
    for part, name in ((vision, "spatial_merge_size"), (config, "spatial_merge_size"), (config, "scale_factor")):
        side *= getattr(part, name, None) or 1
    side *= getattr(config, "downsample_factor", None) or 1
    return int(side / (getattr(config, "downsample_ratio", None) or 1)) ** 2


@dataclass(frozen=True)
class _Targets:
    """The part of a LoraConfig by which PEFT decides whether a module is a target."""

    target_modules: str
    exclude_modules: None = None
    layers_to_transform: None = None
    layers_pattern: None = None
