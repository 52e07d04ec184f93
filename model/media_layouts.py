"""Media tensors in the layouts of all processors: joined over prompts, and split into what a vision tower is given.

Patches of all pictures may be in one list (Qwen, GLM), tiles in one list (InternVL) or one list per picture (LLaVA) or
prompt (Idefics3), pictures padded to the largest (Pixtral) or to a number of patches (LFM2). A picture's own part of a
tensor is told by a grid, a size or a mask that the processor returns beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

KINDS = ("image", "video")
PIXELS = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


def joined(parts: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Media of several prompts as those of one batch, in order.

    Tensors are concatenated on their first axis. Other axes are padded with 0 at their end, as processors do for the
    pictures of one prompt; models cut the padding off by the sizes or masks.

    >>> sizes = joined([{"x": torch.ones(1, 2)}, {"x": torch.ones(2, 1)}])
    >>> sizes["x"].tolist()
    [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]
    """
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: _concatenated([part[key] for part in parts if key in part]) for key in keys}


def items(media: dict[str, torch.Tensor]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """(kind, its part of the tensors) of what is encoded in one call of the vision tower: pictures, then videos.

    With a grid, each picture and video by itself; in other layouts, all pictures of the prompt, and all videos.
    """
    for kind, (pixels, grids) in PIXELS.items():
        if pixels not in media:
            continue
        if grids in media:
            patches = media[grids].prod(dim=1).tolist()
            for values, grid in zip(media[pixels].split(patches), media[grids].split(1), strict=True):
                yield kind, {pixels: values, grids: grid}
        else:
            yield kind, {key: values for key, values in media.items() if ("video" in key) == (kind == "video")}


def grid_features(media: dict[str, torch.Tensor], kind: str, merge: int) -> tuple[int, int]:
    """(features, items) of a kind in a layout with grids, where merge x merge patches are one feature."""
    grid = media.get(PIXELS[kind][1])
    return (0, 0) if grid is None else (int(grid.prod(dim=1).sum()) // merge**2, len(grid))


def digest(kind: str, tensors: dict[str, torch.Tensor]) -> str:
    """A name of an item; equal for two items if and only if they are equal after processing."""
    shapes = [(key, list(values.shape)) for key, values in tensors.items()]
    found = hashlib.blake2b(f"{kind}{shapes}".encode(), digest_size=16)
    for values in tensors.values():
        found.update(values.contiguous().numpy())
    return found.hexdigest()


def _concatenated(tensors: list[torch.Tensor]) -> torch.Tensor:
    shapes = [values.shape[1:] for values in tensors]
    if len(set(shapes)) > 1:
        largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        tensors = [_padded(values, largest) for values in tensors]
    return torch.cat(tensors)


def _padded(values: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    missing = [size - own for size, own in zip(sizes, values.shape[1:], strict=True)]
    return F.pad(values, [number for count in reversed(missing) for number in (0, count)])
