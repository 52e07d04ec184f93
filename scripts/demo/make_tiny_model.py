"""Builds the demo model: a Qwen2.5-VL of the real classes with 2.5 million parameters, its tokenizer and its processor.

    python scripts/demo/make_tiny_model.py --out /some/folder      # random weights; warm_start.py trains and saves them

Everything is made from code: the byte-level BPE is trained on the demo's own sentences and a little general English.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor

TEMPLATE = (
    "{Question} First think inside <think> </think>, then give the path inside <answer> </answer> as [[x, y], ...] "
    "in pixels of the picture, from start to end."
)
VOCAB_SIZE = 704
SPECIAL_TOKENS = [  # Qwen2.5's, in its order; <think> is deliberately not among them
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
PLAIN_ADDED_TOKENS = [  # Qwen2.5 adds these too, but a decode with skip_special_tokens keeps them
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>",
]  # fmt: skip
GENERAL_ENGLISH = """
The quick way is not always the best way, and a robot that looks before it moves will break fewer cups. Please answer the
question about the picture. What is the colour of the small box on the table? There are two cups, one plate and a spoon
beside the lamp. Describe the image in one sentence. I think the answer is that it should go to the other side. First we
take a look at what is there, then we choose a path from the start to the end. If there is nothing in between, a straight
line will do. How many things can you see? You can use the tools that were given to you. The sum of three and four is
seven. Which of these is larger? Yes, no, maybe. This video shows a hand which picks up the block and puts it down again.
"""  # noqa: E501
CHAT_TEMPLATE = (
    # Same decisions as Qwen2.5-VL's: a default system turn, and a part that has an `image` KEY counts as a picture,
    # even when its value is None and its type is text.
    "{%- set seen = namespace(images=0, videos=0) -%}"
    "{%- if messages[0]['role'] != 'system' -%}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
    "{%- endif -%}"
    "{%- for turn in messages -%}"
    "{{ '<|im_start|>' + turn['role'] + '\\n' }}"
    "{%- if turn['content'] is string -%}{{ turn['content'] }}{%- else -%}"
    "{%- for part in turn['content'] -%}"
    "{%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}"
    "{%- set seen.images = seen.images + 1 -%}"
    "{%- if add_vision_id -%}{{ 'Picture ' ~ seen.images ~ ': ' }}{%- endif -%}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part['type'] == 'video' or 'video' in part -%}"
    "{%- set seen.videos = seen.videos + 1 -%}"
    "{%- if add_vision_id -%}{{ 'Video ' ~ seen.videos ~ ': ' }}{%- endif -%}"
    "{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def demo_sentences():
    """Texts that the tokenizer should know in few tokens: questions, the instruction, thoughts and answers.

    `</think>` and `<answer>` never stand side by side here: `>` and `<` stay two tokens, and a thought ends cleanly.
    """
    sentences = [TEMPLATE.format(Question="Move the gripper to the red cube."), "You are a helpful assistant."]
    sentences += ["system\n", "user\n", "assistant\n"]
    for colour in ("red", "green", "blue", "yellow"):
        for shape in ("cube", "ball", "cone"):
            sentences.append(f"Move the gripper to the {colour} {shape}.")
            for side in ("above", "below", "left", "right"):
                sentences.append(f"<think>Gripper at [7, 12]. The {colour} {shape} at [105, 9].")
                sentences.append(f" Block at [61, 80], so pass {side}, slowly.</think>")
    endings = [" Go straight, fast.</think>", " Go straight, slowly.</think>"]
    sentences += [*endings, "<answer>[[4, 5], [31, 77], [8, 9]]</answer>"] * 20
    return sentences + GENERAL_ENGLISH.strip().splitlines() * 3


def build_tokenizer():
    """A Qwen2Tokenizer with Qwen's split pattern (every digit its own token) and VOCAB_SIZE ids."""
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    added = SPECIAL_TOKENS + PLAIN_ADDED_TOKENS
    bpe.train_from_iterator(
        demo_sentences(),
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE - len(added),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    trained = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=trained["vocab"],
        merges=[tuple(merge) for merge in trained["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=SPECIAL_TOKENS,
        model_max_length=4096,
    )
    tokenizer.add_tokens(PLAIN_ADDED_TOKENS)
    return tokenizer


def build_processor(tokenizer):
    """A Qwen2_5_VLProcessor whose smallest picture is one merged patch (28 x 28): small pictures are not enlarged."""
    limits = {"shortest_edge": 28 * 28, "longest_edge": 1280 * 28 * 28}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=limits),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(size=limits),
        chat_template=CHAT_TEMPLATE,
    )


def build_config(tokenizer):
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in (
        "im_end", "endoftext", "image_pad", "video_pad", "vision_start", "vision_end")}  # fmt: skip
    text = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,  # head size 32
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
        "bos_token_id": ids["endoftext"],
        "eos_token_id": ids["im_end"],
        "pad_token_id": ids["endoftext"],
    }
    vision = {
        "depth": 4,
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_heads": 3,  # head size 32
        "out_hidden_size": text["hidden_size"],
        "fullatt_block_indexes": [1, 3],
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=True,
    )


def build_model(tokenizer, seed=0):
    """The model with random weights (float32), and the sampling defaults that Qwen2.5-VL ships.

    Those defaults (top_k 1, temperature 1e-6) make every sample greedy for code that does not override them: a trap
    that the demo keeps on purpose.
    """
    torch.manual_seed(seed)
    config = build_config(tokenizer)
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        bos_token_id=config.text_config.bos_token_id,
        pad_token_id=config.text_config.pad_token_id,
        eos_token_id=[config.text_config.eos_token_id, config.text_config.pad_token_id],
        do_sample=True,
        temperature=1e-6,
        top_k=1,
        repetition_penalty=1.05,
    )
    return model


def save(model, folder):
    """Weights, configs, tokenizer, processor; the last two are built afresh: use leaves padding settings in them."""
    model.save_pretrained(folder)
    build_processor(build_tokenizer()).save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    args = parser.parse_args()
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, args.seed)
    save(model, args.out)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens, written to {args.out}")


if __name__ == "__main__":
    main()
