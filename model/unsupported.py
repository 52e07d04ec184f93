"""Kinds of models that cannot be trained here, recognised by their config and class before weights are loaded."""

from __future__ import annotations

import inspect

from transformers import AutoModel, AutoModelForImageTextToText, PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

# Where a text model keeps layers that attend to pictures from beside the row.
CROSS_ATTENTION = ("cross_attention_layers", "cross_layer_interval", "add_cross_attention")
# What a text config may do to logits; TRL's head applies it for every model.
LOGIT_SCALES = ("logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling", "final_logit_softcapping")
TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")


def unsupported(config: PretrainedConfig, sees_both_ways: bool = False) -> str | None:
    """Why models of this config cannot be trained, as a clause, or None.

    `sees_both_ways`: the family's module handles pictures whose tokens attend to each other in both directions.
    """
    try:
        text = config.get_text_config()
    except ValueError:  # MusicGen's, of an encoder and a decoder
        return "it has more than one text model"
    if config.is_encoder_decoder or text.is_encoder_decoder:
        return "it is an encoder-decoder, and a tree of rollouts grows in one decoder"
    if any(getattr(part, name, None) for part in (config, text) for name in CROSS_ATTENTION):
        return "its text attends to pictures by cross-attention, so that pictures have no place in a row of tokens"
    if config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return _not_causal(config, sees_both_ways)
    if hasattr(config, "audio_config") and not hasattr(config, "vision_config"):
        return "it hears audio, which no dataset row holds"
    if hasattr(config, "vision_config") or config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "transformers has no model of it that continues text and pictures"
    return None


def _not_causal(config: PretrainedConfig, sees_both_ways: bool) -> str | None:
    model = AutoModelForImageTextToText._model_mapping[type(config)]
    inputs = inspect.signature(model.forward).parameters
    if "Diffusion" in model.__name__:
        return "it writes a block of text by diffusion, not one token after the other"
    if not {"input_ids", "pixel_values", "position_ids"} <= inputs.keys():
        return f"{model.__name__} does not take token ids, pixels and positions"
    if getattr(config, "image_token_id", None) is None:
        return "its pictures have no placeholder token in the text"
    text, forward = config.get_text_config(), inspect.getsource(model.forward)
    for name in LOGIT_SCALES:
        if getattr(text, name, None) not in (None, 1.0) and name not in forward:
            return (
                f"its text config has {name}={getattr(text, name)}, which {model.__name__} does not apply and TRL's "
                "head does, so that another policy would be trained than sampled; in a local copy's config.json, set "
                f"it to {'null' if 'cap' in name else 1.0}"
            )
    # With three position axes the types of tokens are for the positions, else for the attention mask.
    positions = hasattr(AutoModel._model_mapping.get(type(config), object), "get_rope_index")
    if not sees_both_ways and not positions and any(name in inputs for name in TOKEN_TYPES):
        return "tokens of its prompts attend to later ones, and no module here tells the model which"
    return None
