"""The text module and the table that finds a module for a model."""

import re

import pytest
import torch

from model.qwen_module import Qwen2_5VLModule
from model.registry import module_for
from model.text_module import TextModule


def turn(words: str) -> list[dict]:
    return [{"role": "user", "content": [{"type": "text", "text": words}]}]


def test_string_and_typed_content_give_the_same_ids(tiny_text):
    module = tiny_text[0]
    assert module.encode([{"role": "user", "content": "How many?"}]).ids == module.encode(turn("How many?")).ids
    assert module.render(turn("How many?")).endswith("<|im_start|>assistant\n")


def test_a_tokenizer_that_adds_bos_adds_none_to_a_rendered_prompt(tiny_text):
    module, _, tokenizer = tiny_text
    assert tokenizer.decode(module.encode(turn("How many?")).ids) == module.render(turn("How many?"))


def test_media_are_refused(tiny_text):
    module = tiny_text[0]
    with pytest.raises(ValueError, match="1 pictures and 0 videos for qwen2, a text model"):
        module.encode(turn("Where?"), images=["a picture"])
    with pytest.raises(ValueError, match="part of type image, but qwen2 is a text model"):
        module.encode([{"role": "user", "content": [{"type": "image", "index": 0}]}])


def test_a_model_without_a_chat_template_is_refused(tiny_text, tmp_path):
    module, _, tokenizer = tiny_text
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match=r"has no chat template.*put a chat_template\.jinja"):
        type(module)(module.config).load_processor(str(tmp_path))


def test_forbidden_ids_hold_padding_unless_it_ends_an_answer(tiny_text):
    module, _, tokenizer = tiny_text
    assert module.forbidden_token_ids(tokenizer) == [], "here <|endoftext|> pads and ends"
    assert set(module.eos_token_ids(tokenizer)) >= {tokenizer.eos_token_id, tokenizer.pad_token_id}
    tokenizer.pad_token = "<|fim_pad|>"
    try:
        assert module.forbidden_token_ids(tokenizer) == [tokenizer.pad_token_id]
    finally:
        tokenizer.pad_token = "<|endoftext|>"


def test_lora_takes_the_blocks_linear_layers(tiny_text):
    module, model, _ = tiny_text
    linears = [name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    chosen = [name for name in linears if re.fullmatch(module.lora_target_modules(model), name)]
    assert sorted(chosen) == sorted(name for name in linears if name != "lm_head")
    assert len(chosen) == 14


def test_each_model_type_finds_its_module(tiny_model_dir, tiny_text_dir):
    from transformers import AutoConfig

    assert type(module_for(tiny_model_dir)) is Qwen2_5VLModule
    assert type(module_for(str(tiny_text_dir))) is TextModule
    for listed in ("llama", "qwen3", "mistral", "smollm3"):
        assert type(module_for(AutoConfig.for_model(listed))) is TextModule


def test_a_place_without_a_model_gives_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="no model config could be read from") as caught:
        module_for(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no model config could be read from 'no/such-model'"):
        module_for("no/such-model")
