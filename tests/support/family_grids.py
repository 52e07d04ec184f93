"""Small models of the families with grids of patches and three position axes: Qwen and GLM-V."""

import transformers as hf
from family_parts import CHATML, HEAD, HIDDEN, text_config, token_ids
from family_tokens import chatml, template, tokenizer

QWEN_MEDIA = ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]


def _qwen_tokens():
    named = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    return tokenizer([*CHATML, *QWEN_MEDIA], "<|im_end|>", "<|endoftext|>", **named)


def _qwen_ids(tokens) -> dict:
    names = {"image_token_id": "image_pad", "video_token_id": "video_pad"}
    names |= {"vision_start_token_id": "vision_start", "vision_end_token_id": "vision_end"}
    return token_ids(tokens, **{name: f"<|{token}|>" for name, token in names.items()})


def _qwen_parts(patch: int, processor_class, video_class, tokens):
    """Pictures from one cell of the grid on, videos likewise."""
    pixels = {"size": {"shortest_edge": (2 * patch) ** 2, "longest_edge": 100 * (2 * patch) ** 2}}
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    # Qwen3-VL's processor writes the borders of a video's frames itself, and puts time stamps before them.
    video = picture.replace("image", "video")
    parts = {"patch_size": patch, "merge_size": 2, "temporal_patch_size": 2} | pixels
    return processor_class(
        image_processor=hf.Qwen2VLImageProcessor(**parts),
        tokenizer=tokens,
        video_processor=video_class(**parts),
        chat_template=chatml(picture, video),
    )


def qwen2_vl():
    """Qwen/Qwen2-VL-2B-Instruct: 28 layers of full attention, mrope_section [16, 24, 24] of 64; patches of 14."""
    tokens = _qwen_tokens()
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    vision = {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": HIDDEN, "patch_size": 14}
    config = hf.Qwen2VLConfig(
        text_config=text_config(tokens, rope_parameters=rope), vision_config=vision, **_qwen_ids(tokens)
    )
    return config, _qwen_parts(14, hf.Qwen2VLProcessor, hf.Qwen2VLVideoProcessor, tokens)


def qwen2_5_vl():
    """Qwen/Qwen2.5-VL-3B-Instruct: 36 layers of full attention; window attention in the tower but for four blocks."""
    tokens = _qwen_tokens()
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": HIDDEN}
    vision |= {"fullatt_block_indexes": [1], "window_size": 56, "patch_size": 14}
    config = hf.Qwen2_5_VLConfig(
        text_config=text_config(tokens, rope_parameters=rope), vision_config=vision, **_qwen_ids(tokens)
    )
    return config, _qwen_parts(14, hf.Qwen2_5_VLProcessor, hf.Qwen2VLVideoProcessor, tokens)


# Qwen/Qwen3-VL-2B-Instruct: features of blocks 5, 11 and 17 of 24 enter the first three of 28 layers; patches of 16;
# mrope_section [24, 20, 20] of 64, interleaved; a grid of 48 x 48 position embeddings.
QWEN3_ROPE = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
QWEN3_VISION = {"depth": 3, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": HIDDEN}
QWEN3_VISION |= {"patch_size": 16, "num_position_embeddings": 16}


def qwen3_vl():
    tokens = _qwen_tokens()
    config = hf.Qwen3VLConfig(
        text_config=text_config(tokens, 4, head_dim=HEAD, rope_parameters=QWEN3_ROPE),
        vision_config=QWEN3_VISION | {"deepstack_visual_indexes": [0, 1, 2]},
        **_qwen_ids(tokens),
    )
    return config, _qwen_parts(16, hf.Qwen3VLProcessor, hf.Qwen3VLVideoProcessor, tokens)


def qwen3_vl_moe():
    """Qwen/Qwen3-VL-30B-A3B-Instruct: every layer has 128 experts, 8 of them per token."""
    tokens = _qwen_tokens()
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
    config = hf.Qwen3VLMoeConfig(
        text_config=text_config(tokens, 4, head_dim=HEAD, rope_parameters=QWEN3_ROPE, **experts),
        vision_config=QWEN3_VISION | {"deepstack_visual_indexes": [0, 1, 2]},
        **_qwen_ids(tokens),
    )
    return config, _qwen_parts(16, hf.Qwen3VLProcessor, hf.Qwen3VLVideoProcessor, tokens)


def qwen3_5():
    """Qwen/Qwen3.5-9B: three layers with a recurrent state, then one of full attention; a quarter of a head rotates."""
    tokens = _qwen_tokens()
    rope = {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    linear |= {"linear_num_value_heads": 4, "linear_conv_kernel_dim": 4, "initializer_range": 0.05}
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    text = text_config(
        tokens, 4, head_dim=32, rope_parameters=rope | {"partial_rotary_factor": 0.25}, layer_types=kinds
    )
    config = hf.Qwen3_5Config(text_config=text | linear, vision_config=QWEN3_VISION, **_qwen_ids(tokens))
    return config, _qwen_parts(16, hf.Qwen3VLProcessor, hf.Qwen3VLVideoProcessor, tokens)


GLM_NAMED = {"image_token": "<|image|>", "video_token": "<|video|>"}
GLM_MEDIA = {"image_start_token_id": "<|begin_of_image|>", "image_end_token_id": "<|end_of_image|>"}
GLM_MEDIA |= {"video_start_token_id": "<|begin_of_video|>", "video_end_token_id": "<|end_of_video|>"}
GLM_MEDIA |= {"image_token_id": "<|image|>", "video_token_id": "<|video|>"}


def _glm(config_class, processor_class, image_class, video_class):
    special = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", *GLM_MEDIA.values()]
    tokens = tokenizer(special, "<|endoftext|>", "<|endoftext|>", **GLM_NAMED)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": HIDDEN}
    vision |= {"image_size": 56, "patch_size": 14}
    config = config_class(
        text_config=text_config(tokens, rope_parameters=rope), vision_config=vision, **token_ids(tokens, **GLM_MEDIA)
    )
    parts = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    parts["size"] = {"shortest_edge": 28 * 28 * 2, "longest_edge": 100 * 28 * 28}
    written = template(
        r"'<|' + turn['role'] + '|>\n'",
        "",
        r"<|assistant|>\n",
        "[gMASK]<sop>",
        "<|begin_of_image|><|image|><|end_of_image|>",
        "<|begin_of_video|><|video|><|end_of_video|>",
    )
    return config, processor_class(
        image_processor=image_class(**parts),
        tokenizer=tokens,
        video_processor=video_class(**parts),
        chat_template=written,
    )


def glm4v():
    """zai-org/GLM-4.1V-9B-Thinking: 40 layers of full attention, half of a head rotates, mrope_section [8, 12, 12]."""
    return _glm(hf.Glm4vConfig, hf.Glm4vProcessor, hf.Glm4vImageProcessor, hf.Glm4vVideoProcessor)


def glm46v():
    """zai-org/GLM-4.6V-Flash: the text model and tower of GLM-4.1V with its own processor."""
    return _glm(hf.Glm46VConfig, hf.Glm46VProcessor, hf.Glm46VImageProcessor, hf.Glm46VVideoProcessor)
