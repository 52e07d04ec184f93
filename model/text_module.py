"""Decoder-only text models of transformers: Qwen2, Qwen2.5, Qwen3, Llama, SmolLM2 and similar ones."""

from __future__ import annotations

import re

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from model.control_tokens import turn_tokens
from model.vlm_module import TURN_TOKENS, EncodedPrompt, VLMModule, refuse_in_text, tools_in, typed_parts, unloadable
from task.errors import UserError


class TextModule(VLMModule):
    """A text model: no media, one position axis, the tokenizer is the processor."""

    auto_class = AutoModelForCausalLM
    coordinate_frame = "processed"  # prompts without pictures have no frame; this is the default of tasks

    def load_processor(self, name, min_pixels=None, max_pixels=None, revision=None, trust_remote_code=False):
        """Loads the tokenizer; pixel limits are ignored. UserError if it has no chat template."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                name, trust_remote_code=trust_remote_code, **({} if revision is None else {"revision": revision})
            )
        except Exception as error:
            raise UserError(unloadable(name, "tokenizer", error)) from error
        if not tokenizer.chat_template:
            raise UserError(
                f"{name} has no chat template, so the prompt format is undefined: use the instruction-tuned model, or "
                f"put a chat_template.jinja into a local copy of the model's folder."
            )
        tokenizer.padding_side = "left"
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self._check_special_ids(name, tokenizer)
        self.processor = tokenizer
        self._check_header(name)
        return tokenizer

    def lora_target_modules(self, model, vision=False):
        """The linear layers inside the numbered blocks, read from the model since names differ between families."""
        linears = [name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
        suffixes = sorted({match[1] for name in linears if (match := re.search(r"\.layers\.\d+\.(.+)$", name))})
        if not suffixes:
            raise UserError(
                f"{type(model).__name__} has no linear layers under `layers.N.`, so LoRA has no default place: "
                f"give lora_target_modules."
            )
        return r".*\.layers\.\d+\.(" + "|".join(re.escape(suffix) for suffix in suffixes) + ")"

    def tower_of(self, parameter_name):
        return "language"

    def render(self, messages):
        turns = []
        for message in typed_parts(messages):
            other = next((part["type"] for part in message["content"] if part["type"] != "text"), None)
            if other:
                raise UserError(
                    f"the {message['role']} turn has a part of type {other}, but {self.config.model_type} is a text "
                    f"model: train a vision-language model, or leave rows with media out."
                )
            # Most text templates expect a string.
            turns.append({"role": message["role"], "content": "".join(part["text"] for part in message["content"])})
        return self._rendered(turns, tools_in(messages))

    def encode(self, messages, images=(), videos=()):
        if images or videos:
            raise UserError(
                f"{len(images)} pictures and {len(videos)} videos for {self.config.model_type}, a text model: "
                f"train a vision-language model, or leave rows with media out."
            )
        borders = turn_tokens(self.processor, str(self.processor.chat_template))
        refuse_in_text(messages, (*TURN_TOKENS, *borders), "the border of a turn")
        # The template writes the special tokens itself; a second BOS would be wrong.
        ids = self.processor(self.render(messages), add_special_tokens=False)["input_ids"]
        return EncodedPrompt(ids=ids, position_ids=torch.arange(len(ids)), next_position=len(ids))

    def encode_observation(self, parts):
        if any(part["type"] == "image" for part in parts):
            raise UserError(
                f"an observation has a picture, but {self.config.model_type} is a text model: train a vision-language "
                "model, or let the environment answer in text."
            )
        ids = [token for part in parts for token in self._part_ids(part)]
        return EncodedPrompt(ids=ids, position_ids=torch.arange(len(ids)), next_position=len(ids))

    def check_media(self, ids, media, what):
        """Nothing to check: text has no placeholders."""
