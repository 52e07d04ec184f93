"""Positions of what follows a picture or video, for rotary positions on three axes (time, height, width)."""

from __future__ import annotations

import torch

# Families whose frames share one grid and whose authors start text behind it: qwenvl/data/rope2d.py of QwenLM/Qwen3-VL,
# processing_ernie4_5_vl.py of ERNIE 4.5 (`cur_position = np.max(pos_ids) + 1`).
RESTARTED = ("qwen2_vl", "qwen2_5_vl", "ernie4_5_vl_moe")


def restarted_after_media(position_ids: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
    """The positions, with every run of tokens beginning one past the largest position before it, on any axis.

    That is the rule that Qwen's models were trained with (`get_rope_index_2`, `_25` and `_3` in
    qwen-vl-finetune/qwenvl/data/rope2d.py: "the text start position_ids as the max vision position_ids plus 1"), and
    vLLM's.
    transformers 5.3 to 5.24 continue instead after the larger side of the frames, so that the text after a long video
    stands at positions inside the video: 17 where the video's times end at 365. Pictures, and videos whose frames are
    separated by time stamps (Qwen3-VL, GLM-V), have no times beyond their sides, and keep their positions.

    Args:
        position_ids: (3, P), as transformers gives them.
        kinds: (P,) 0 for text, 1 for a picture's tokens, 2 for a video's; between two media stands text.

    >>> video = torch.tensor([[0, 1, 5, 9, 2], [0, 1, 1, 1, 2], [0, 1, 1, 1, 2]])  # a frame of one cell at 4 per second
    >>> restarted_after_media(video, torch.tensor([0, 2, 2, 2, 0]))[0].tolist()
    [0, 1, 5, 9, 10]
    """
    _, lengths = torch.unique_consecutive(kinds, return_counts=True)
    runs, start = [], 0
    for run in position_ids.split(lengths.tolist(), dim=1):
        runs.append(run - run.min() + start)
        start = int(runs[-1].max()) + 1
    return torch.cat(runs, dim=1)
