"""The model that the benchmarks share: Qwen2.5-VL of a given size with random weights, and the demo's processor."""

import statistics
import time
from pathlib import Path

import torch
from peft import LoraConfig
from transformers import AutoProcessor, GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from model.qwen_module import Qwen2_5VLModule

PROCESSOR = Path(__file__).resolve().parents[1] / "demo" / "tiny_model"
# Ids from here on are unused by the demo's tokenizer, so random tokens are never special ones.
FIRST_FREE_ID = 1000

LORA = {"r": 64, "lora_alpha": 128, "lora_dropout": 0.05}
PRESETS = {
    "cpu": {
        "text": {
            "hidden_size": 512,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "intermediate_size": 1376,
            "vocab_size": 2048,
            "mrope": [8, 12, 12],
        },
        "vision": {"hidden_size": 192, "depth": 6, "num_heads": 6, "intermediate_size": 512, "full": [2, 5]},
        "sizes": {"think_num": 4, "answer_num": 4, "thought": 128, "answer": 32, "text_tokens": 60, "grid": 40},
        "device": "cpu",
        "dtype": "float32",
    },
    "gpu": {
        "text": {
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "intermediate_size": 11008,
            "vocab_size": 151936,
            "mrope": [16, 24, 24],
        },
        "vision": {
            "hidden_size": 1280,
            "depth": 32,
            "num_heads": 16,
            "intermediate_size": 3420,
            "full": [7, 15, 23, 31],
        },
        # The lengths and the adapter of config/recipes/grpo_ma_qwen2_5_vl_3b.yaml, and a picture near its pixel limit
        # (484 of 512 visual tokens).
        "sizes": {"think_num": 4, "answer_num": 4, "thought": 384, "answer": 128, "text_tokens": 128, "grid": 44},
        "device": "cuda",
        "dtype": "bfloat16",
        "checkpointing": True,  # TRL's default; without it the dense side alone exceeds the memory of a large GPU
        "lora": LORA,
    },
}


def build_processor():
    return AutoProcessor.from_pretrained(PROCESSOR)


def build_model(preset: dict, processor) -> Qwen2_5_VLForConditionalGeneration:
    """The preset's model in eval mode, with the processor's media ids; every call gives the same weights."""
    text, vision = dict(preset["text"]), dict(preset["vision"])
    mrope, tokenizer = text.pop("mrope"), processor.tokenizer
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    text |= {"bos_token_id": None, "eos_token_id": end, "pad_token_id": pad, "tie_word_embeddings": True}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": mrope}}
    vision |= {"fullatt_block_indexes": vision.pop("full"), "out_hidden_size": text["hidden_size"]}
    ids = {
        f"{key}_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>")
        for key, name in (
            ("image_token", "image_pad"),
            ("video_token", "video_pad"),
            ("vision_start_token", "vision_start"),
            ("vision_end_token", "vision_end"),
        )
    }
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    torch.manual_seed(0)
    with torch.device(preset["device"]):
        model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=getattr(torch, preset["dtype"])).eval()
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    model.config.architectures = [type(model).__name__]  # as in a model's own config.json; vLLM reads it
    return model


def adapter_of(preset: dict, model, **changes) -> LoraConfig | None:
    """The preset's adapter of the language model, with settings of LoraConfig changed; None if it has none."""
    if not preset.get("lora"):
        return None
    target = Qwen2_5VLModule(model.config).lora_target_modules(model)
    return LoraConfig(**preset["lora"] | changes, target_modules=target)


def never_sampled(module, processor) -> list[int]:
    """What an engine must not sample, so that each rollout reaches its token limit: all special tokens, too."""
    return sorted({*module.forbidden_token_ids(processor), *processor.tokenizer.all_special_ids})


def write_to_the_limit(model, processor) -> None:
    """Bans special tokens in every sampling step of `model`, so that each rollout reaches its token limit.

    The ban is in the output layer's forward, which both trees and `generate` call; the fused head of the log-prob
    passes uses only the layer's weights.
    """
    banned = torch.tensor(processor.tokenizer.all_special_ids, device=model.device)

    def ban(layer, inputs, logits):
        return logits.index_fill(-1, banned, float("-inf"))

    model.lm_head.register_forward_hook(ban)


class Clock:
    """Medians of alternating runs; on a CPU in CPU seconds, which other processes affect less than the wall clock."""

    def __init__(self, device: str):
        self.cuda = device == "cuda"
        self.seconds: dict[str, list[float]] = {}
        self.wall: dict[str, list[float]] = {}

    def run(self, name: str, function, *arguments):
        """`function(*arguments)`, timed under `name`; returns its result."""
        begin = time.process_time(), time.perf_counter()
        result = function(*arguments)
        if self.cuda:
            torch.cuda.synchronize()
        wall = time.perf_counter() - begin[1]
        seconds = wall if self.cuda else time.process_time() - begin[0]
        self.seconds.setdefault(name, []).append(seconds)
        self.wall.setdefault(name, []).append(wall)
        print(f"{name:24} {seconds:8.2f} s ({wall:.2f} s of wall clock)", flush=True)
        return result

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self.seconds.items()}
