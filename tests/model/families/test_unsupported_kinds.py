"""Kinds of models that cannot be trained end in a sentence, from their config alone."""

import json

import pytest
from transformers import AutoConfig

from model.loading import load_policy
from model.registry import module_for
from model.vision_language import VisionLanguageModule
from task.errors import UserError

REASONS = {
    "t5": "encoder-decoder",
    "florence2": "encoder-decoder",
    "vision-encoder-decoder": "encoder-decoder",
    "diffusion_gemma": "by diffusion, not one token after the other",
    "qwen2_audio": "audio",
    "voxtral": "audio",
    "mllama": "cross-attention",
    "paligemma": "attend to later ones",
    "gemma3n": "attend to later ones",
    "git": "no placeholder token",
    "aya_vision": "logit_scale=0.0625, which AyaVisionForConditionalGeneration does not apply",
    "musicgen": "more than one text model",
}


@pytest.mark.parametrize("model_type", REASONS)
def test_the_sentence_names_the_kind(model_type):
    with pytest.raises(UserError, match=f"'{model_type}' is not supported: .*{REASONS[model_type]}") as caught:
        module_for(AutoConfig.for_model(model_type))
    assert "\n" not in str(caught.value)


def test_no_weights_are_looked_for(tmp_path):
    """The folder has a config and no weights, which would be another sentence."""
    config = {"model_type": "mllama", "architectures": ["MllamaForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="is not supported: its text attends to pictures by cross-attention"):
        load_policy(str(tmp_path), dtype="float32")


@pytest.mark.parametrize("model_type", ["llava", "ovis2", "hunyuan_vl", "ernie4_5_vl_moe"])
def test_a_family_that_is_named_nowhere_gets_the_general_module(model_type):
    assert type(module_for(AutoConfig.for_model(model_type))) is VisionLanguageModule
