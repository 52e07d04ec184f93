"""The frame in which a family's models write coordinates, each with its source.

`processed`: pixels of the picture after the processor resized it; `norm1000`: 0 to 1000 on both axes of the picture.
Families without an entry have no documented convention that a task could ask for: Gemma 3 (PaliGemma's location tokens
are not in its vocabulary), LFM2-VL and LLaVA (fractions of 1, for LLaVA of the padded square), SmolVLM and Mistral 3.
For them, and for a checkpoint that was trained otherwise, `--coordinate_frame` says it.
"""

from __future__ import annotations

# model_type -> frame
COORDINATE_FRAMES = {
    # The authors, on both: https://github.com/QwenLM/Qwen3-VL/issues/721
    "qwen2_vl": "norm1000",
    "qwen2_5_vl": "processed",
    # The authors: https://github.com/QwenLM/Qwen3-VL/issues/1486, and cookbooks/2d_grounding.ipynb there
    "qwen3_vl": "norm1000",
    "qwen3_vl_moe": "norm1000",
    # The authors: https://github.com/QwenLM/Qwen3.8-Flash-Next/issues/4
    "qwen3_5": "norm1000",
    "qwen3_5_moe": "norm1000",
    # The authors: https://github.com/zai-org/GLM-V/issues/161 (GLM-4.1V) and /114 (GLM-4.5V); GLM-4.5V's model card
    "glm4v": "norm1000",
    "glm4v_moe": "norm1000",
    "glm46v": "norm1000",
    # https://internvl.readthedocs.io/en/latest/get_started/chat_data_format.html#grounding-detection-data
    "internvl": "norm1000",
}
