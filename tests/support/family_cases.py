"""A small random model of each family's real classes, with its real processor class and the layers of its checkpoint.

Sizes are small; the kinds of layers and their order, positions, deepstack layers and tiles are those of the config.json
of the checkpoint that is named with each; Qwen and GLM-V are in `family_grids.py`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers as hf
from family_grids import glm4v, glm46v, qwen2_5_vl, qwen2_vl, qwen3_5, qwen3_vl, qwen3_vl_moe
from family_parts import CHATML, HEAD, text_config, token_ids
from family_tokens import chatml, template, tokenizer
from transformers.image_utils import SizeDict

from model.registry import module_for


@dataclass(frozen=True)
class Family:
    """`build` gives (config, processor). `packed`: whether packing is exact; `video`: whether it takes videos."""

    build: Callable
    packed: bool = True
    video: bool = False
    extra: str | None = None  # a package of its own that the processor needs


def internvl():
    """OpenGVLab/InternVL3-1B-hf: Qwen2.5 text of 24 full-attention layers, tiles of 448 and a thumbnail."""
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "video_token": "<video>"}
    named |= {"context_image_token": "<IMG_CONTEXT>"}
    tokens = tokenizer(CHATML, "<|im_end|>", "<|endoftext|>", **named)
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = hf.InternVLConfig(
        text_config=text_config(tokens, model_type="qwen2", tie_word_embeddings=False),
        vision_config=vision | {"image_size": [28, 28], "patch_size": [14, 14]},
        image_token_id=tokens.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=1,
        tie_word_embeddings=False,
    )
    tiles = {"size": {"height": 28, "width": 28}, "crop_to_patches": True, "max_patches": 6}
    return config, hf.InternVLProcessor(
        image_processor=hf.GotOcr2ImageProcessor(**tiles),
        tokenizer=tokens,
        video_processor=hf.InternVLVideoProcessor(size={"height": 28, "width": 28}),
        image_seq_length=1,
        chat_template=chatml(r"<IMG_CONTEXT>\n", r"<video>\n"),
    )


def _idefics(config_class, processor_class, image_class, **parts):
    special = ["<|im_start|>", "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"]
    special += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokens = tokenizer(special, "<end_of_utterance>", "<|im_end|>", "<|endoftext|>")
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = config_class(
        text_config=text_config(tokens, model_type="llama", tie_word_embeddings=False),
        vision_config=vision | {"image_size": 32, "patch_size": 8},
        image_token_id=tokens.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        tie_word_embeddings=False,
        pad_token_id=tokens.pad_token_id,
    )
    sizes = {"size": SizeDict(longest_edge=128), "max_image_size": SizeDict(longest_edge=32)}
    written = template(
        "('User' if turn['role'] == 'user' else 'System') + ':'",
        r"<end_of_utterance>\n",
        "Assistant:",
        "<|im_start|>",
        "<image>",
        "<video>",
    )
    return config, processor_class(
        image_processor=image_class(**sizes), tokenizer=tokens, image_seq_len=4, chat_template=written, **parts
    )


def idefics3():
    """HuggingFaceM4/Idefics3-8B-Llama3: Llama text of 32 full-attention layers; tiles of 364 and a global picture."""
    return _idefics(hf.Idefics3Config, hf.Idefics3Processor, hf.Idefics3ImageProcessor)


def smolvlm():
    """HuggingFaceTB/SmolVLM2-2.2B-Instruct: Llama text of 24 full-attention layers; tiles of 384, scale factor 3."""
    video = hf.SmolVLMVideoProcessor(size=SizeDict(longest_edge=32), max_image_size=SizeDict(longest_edge=32))
    return _idefics(hf.SmolVLMConfig, hf.SmolVLMProcessor, hf.SmolVLMImageProcessor, video_processor=video)


PICTURES_FIRST = (
    "{%- for part in turn['content'] if part['type'] == 'image' -%}{{ '<image>' }}{%- endfor -%}"
    "{%- for part in turn['content'] if part['type'] == 'video' -%}{{ '<video>' }}{%- endfor -%}"
    r"{%- for part in turn['content'] if part['type'] == 'text' -%}{{ '\n' + part['text'] }}{%- endfor -%}"
)
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIGLIP |= {"intermediate_size": 48, "vision_use_head": False}


def llava_onevision():
    """llava-hf/llava-onevision-qwen2-0.5b-ov-hf: Qwen2 text; 384-pixel tiles of 27 x 27 patches, anyres_max_9."""
    named = {"image_token": "<image>", "video_token": "<video>"}
    tokens = tokenizer(CHATML, "<|im_end|>", "<|endoftext|>", **named)
    pinpoints = [[28, 28], [28, 56], [56, 28], [56, 56], [28, 84], [84, 28]]
    config = hf.LlavaOnevisionConfig(
        text_config=text_config(tokens, model_type="qwen2"),
        vision_config=SIGLIP | {"image_size": 28, "patch_size": 14},
        image_token_index=tokens.convert_tokens_to_ids("<image>"),
        video_token_index=tokens.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=pinpoints,
    )
    size = {"size": {"height": 28, "width": 28}}
    return config, hf.LlavaOnevisionProcessor(
        image_processor=hf.LlavaOnevisionImageProcessor(**size, image_grid_pinpoints=pinpoints),
        tokenizer=tokens,
        video_processor=hf.LlavaOnevisionVideoProcessor(**size),
        num_image_tokens=4,
        vision_feature_select_strategy="full",
        chat_template=chatml("<image>", "<video>", parts=PICTURES_FIRST),
    )


def mistral3():
    """mistralai/Mistral-Small-3.1-24B-Instruct-2503: 40 layers, sliding_window null; patches of 14, 2 x 2 merged."""
    special = ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    tokens = tokenizer(special, "</s>", "<pad>", "<s>", writes_bos=True)
    vision = {"model_type": "pixtral", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"intermediate_size": 48, "image_size": 112, "patch_size": 14, "head_dim": 16}
    config = hf.Mistral3Config(
        text_config=text_config(tokens, model_type="mistral", sliding_window=None, head_dim=HEAD),
        vision_config=vision,
        image_token_index=tokens.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )
    written = template("'[INST]' if turn['role'] == 'user' else '[SYSTEM_PROMPT]'", "[/INST]", "", "<s>", "[IMG]")
    return config, hf.PixtralProcessor(
        image_processor=hf.PixtralImageProcessor(size={"longest_edge": 112}, patch_size={"height": 14, "width": 14}),
        tokenizer=tokens,
        patch_size=14,
        spatial_merge_size=2,
        chat_template=written,
    )


def gemma3():
    """google/gemma-3-4b-it: five layers with a window of 1,024 tokens, then a full one; a picture has 256 tokens."""
    special = ["<start_of_turn>", "<end_of_turn>"]
    named = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokens = tokenizer(special, "<end_of_turn>", "<pad>", "<bos>", writes_bos=True, **named)
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    config = hf.Gemma3Config(
        text_config=text_config(
            tokens, 6, head_dim=HEAD, query_pre_attn_scalar=HEAD, sliding_window=16, layer_types=kinds
        )
        | {"pad_token_id": tokens.pad_token_id},
        vision_config=SIGLIP | {"image_size": 56, "patch_size": 14},
        mm_tokens_per_image=4,
        **token_ids(
            tokens,
            boi_token_index="<start_of_image>",
            eoi_token_index="<end_of_image>",
            image_token_index="<image_soft_token>",
        ),
    )
    written = template(
        r"'<start_of_turn>' + turn['role'] + '\n'",
        r"<end_of_turn>\n",
        r"<start_of_turn>model\n",
        "<bos>",
        "<start_of_image>",
    )
    return config, hf.Gemma3Processor(
        image_processor=hf.Gemma3ImageProcessor(size={"height": 56, "width": 56}),
        tokenizer=tokens,
        image_seq_length=4,
        chat_template=written,
    )


def lfm2_vl():
    """LiquidAI/LFM2-VL-450M: 16 layers, convolutions but for full attention in 2, 5, 8, 10, 12 and 14."""
    named = {"image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"}
    named |= {"image_thumbnail_token": "<|img_thumbnail|>"}
    special = [*CHATML, "<|startoftext|>"]
    special += [f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)]
    tokens = tokenizer(special, "<|im_end|>", "<|pad|>", "<|startoftext|>", writes_bos=True, **named)
    kinds = ["conv", "conv", "full_attention", "conv"]
    vision = {"model_type": "siglip2_vision_model", "hidden_size": 32, "num_hidden_layers": 2}
    vision |= {"num_attention_heads": 2, "intermediate_size": 48, "patch_size": 14, "num_patches": 16}
    config = hf.Lfm2VlConfig(
        text_config=text_config(tokens, 4, model_type="lfm2", layer_types=kinds) | {"conv_L_cache": 3},
        vision_config=vision | {"vision_use_head": False},
        image_token_id=tokens.convert_tokens_to_ids("<image>"),
        projector_hidden_size=32,
    )
    parts = {"encoder_patch_size": 14, "downsample_factor": 2, "min_image_tokens": 1, "max_image_tokens": 16}
    return config, hf.Lfm2VlProcessor(
        image_processor=hf.Lfm2VlImageProcessor(**parts, tile_size=56, max_tiles=4, max_num_patches=64),
        tokenizer=tokens,
        chat_template=chatml("<image>", start="<|startoftext|>"),
    )


def aya_vision():
    """CohereLabs/aya-vision-8b: three layers with a window of 4,096 tokens, then a full one; tiles of 364.

    Its logit_scale is 1, as `model/unsupported.py` asks for.
    """
    turn = ["<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"]
    special = [*turn, "<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>", "<|IMG_PATCH|>"]
    special += ["TILE", "TILE_GLOBAL"]
    tokens = tokenizer(special, turn[1], "<PAD>", "<BOS_TOKEN>", writes_bos=True)
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    config = hf.AyaVisionConfig(
        text_config=text_config(tokens, 4, model_type="cohere2", layer_types=kinds, sliding_window=16, logit_scale=1.0)
        | {"pad_token_id": tokens.pad_token_id},
        vision_config=SIGLIP | {"image_size": 56, "patch_size": 14},
        image_token_index=tokens.convert_tokens_to_ids("<|IMG_PATCH|>"),
        alignment_intermediate_size=64,
    )
    return config, hf.AyaVisionProcessor(
        image_processor=hf.GotOcr2ImageProcessor(size={"height": 56, "width": 56}, max_patches=4),
        tokenizer=tokens,
        patch_size=28,
        img_size=56,
        chat_template=template(
            "'<|START_OF_TURN_TOKEN|><|USER_TOKEN|>'",
            turn[1],
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            "<BOS_TOKEN>",
            "<image>",
        ),
    )


def llava_next():
    """llava-hf/llava-v1.6-mistral-7b-hf: Mistral text of 32 full-attention layers; CLIP tiles of 336."""
    tokens = tokenizer(["<image>"], "</s>", "<pad>", "<s>", writes_bos=True)
    pinpoints = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    vision |= {"intermediate_size": 48, "image_size": 28, "patch_size": 14}
    config = hf.LlavaNextConfig(
        text_config=text_config(tokens, model_type="mistral", sliding_window=None),
        vision_config=vision,
        image_token_index=tokens.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=pinpoints,
        image_seq_length=4,
    )
    sizes = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    return config, hf.LlavaNextProcessor(
        image_processor=hf.LlavaNextImageProcessor(**sizes, image_grid_pinpoints=pinpoints),
        tokenizer=tokens,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template("'[INST] '", " [/INST]", "", "<s>", r"<image>\n"),
    )


FAMILIES = {
    "qwen2_vl": Family(qwen2_vl, video=True),
    "qwen2_5_vl": Family(qwen2_5_vl, video=True),
    "qwen3_vl": Family(qwen3_vl, video=True),
    "qwen3_vl_moe": Family(qwen3_vl_moe, video=True),
    "glm4v": Family(glm4v, video=True),
    "glm46v": Family(glm46v, video=True),
    "internvl": Family(internvl, video=True),
    "idefics3": Family(idefics3),
    "smolvlm": Family(smolvlm, video=True, extra="num2words"),
    "llava_onevision": Family(llava_onevision, video=True),
    "mistral3": Family(mistral3),
    "gemma3": Family(gemma3, packed=False),
    "qwen3_5": Family(qwen3_5, packed=False, video=True),
    "lfm2_vl": Family(lfm2_vl, packed=False),
    "aya_vision": Family(aya_vision, packed=False),
    "llava_next": Family(llava_next),
}


@functools.cache
def built(name: str):
    """(module, random model in float32 and eval mode, processor) of a family. Shared: copy before changing it."""
    torch.set_num_threads(1)
    config, processor = FAMILIES[name].build()
    module = module_for(config)
    torch.manual_seed(0)
    model = module.auto_class.from_config(config, attn_implementation="sdpa").eval()
    for weight in model.parameters():
        if weight.dim() > 1 and not weight.any():  # Gemma's projection of pictures begins at 0
            torch.nn.init.normal_(weight, std=0.1)
    processor.tokenizer.padding_side = "left"
    module.processor = processor
    return module, model, processor
