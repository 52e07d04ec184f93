"""Which module is used for which model: a table, and the rule for text models."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from model.families import Gemma3Module
from model.qwen_module import Qwen2_5VLModule, Qwen2VLModule, Qwen3VLModule
from model.text_module import TextModule
from model.unsupported import unsupported
from model.vision_language import VisionLanguageModule
from model.vlm_module import VLMModule
from task.errors import UserError

MODULES = {
    "qwen2_vl": Qwen2VLModule,
    "qwen2_5_vl": Qwen2_5VLModule,
    "qwen3_vl": Qwen3VLModule,
    "qwen3_vl_moe": Qwen3VLModule,
    "gemma3": Gemma3Module,
}


def module_for(
    config_or_path: PretrainedConfig | str | Path, revision: str | None = None, trust_remote_code: bool = False
) -> VLMModule:
    """A new module for a model's config, folder or hub name.

    Model types outside the table use VisionLanguageModule if transformers has a model of pictures and text for them,
    and TextModule if it has a decoder-only language model. Raises UserError for what cannot be trained (`unsupported`),
    adapter folders and places without a readable config.
    """
    config = config_or_path
    if not isinstance(config, PretrainedConfig):
        config = _read_config(str(config_or_path), revision, trust_remote_code)
    general = VisionLanguageModule if config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES else TextModule
    module = MODULES.get(config.model_type, general)
    reason = unsupported(config, module.sees_both_ways)
    if reason:
        raise UserError(
            f"model type {config.model_type!r} is not supported: {reason}. Choose a vision-language model or a "
            "decoder-only text model of transformers with causal attention (docs/models.md)."
        )
    return module(config)


def _read_config(name: str, revision: str | None, trust_remote_code: bool) -> PretrainedConfig:
    folder = Path(name)
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise UserError(
            f"{name} is a LoRA adapter, not a model: pass it as --adapter_path, and its base as --model_name_or_path."
        )
    try:
        return AutoConfig.from_pretrained(
            name, trust_remote_code=trust_remote_code, **({} if revision is None else {"revision": revision})
        )
    except (OSError, ValueError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"no model config could be read from {name!r} ({first_line}): give a folder with a config.json or the "
            f"name of a model on the hub."
        ) from error
