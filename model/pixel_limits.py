"""Limits on the pixels of a picture, in the terms of each kind of image processor and in the form saved with it."""

from __future__ import annotations

from math import isqrt

from transformers.image_utils import SizeDict

from task.errors import UserError


def limit_pixels(part, min_pixels: int | None, max_pixels: int | None) -> None:
    """Limits the pixels of one picture or video frame after resizing; None keeps the checkpoint's limit.

    Patches of any size of picture (Qwen, GLM, LFM2) have a smallest and a largest number of pixels. Tiles (InternVL,
    Aya Vision) are limited to as many as the pixels fill, and the longest edge (Mistral, Idefics3) to that of a square.

    Raises:
        UserError: limits that no picture can meet, and a processor without such a setting.
    """
    if min_pixels is None and max_pixels is None:
        return
    set_limits = _rule(part)
    if set_limits is None or (min_pixels is not None and set_limits not in (_limit_area, _limit_tokens)):
        asked = "max_pixels" if set_limits is None else "min_pixels"
        raise UserError(
            f"{asked} is set, but {type(part).__name__} has no such limit: its pictures have fixed sizes, or "
            f"sizes that the model's config states too. Leave {asked} out."
        )
    set_limits(part, min_pixels, max_pixels)


def size_of_pictures(part) -> str:
    """How a picture processor sizes pictures, for the start-up table."""
    rule, size = _rule(part), part.size
    if rule is _limit_area:
        return f"scaled to {size.shortest_edge:,} to {size.longest_edge:,} pixels"
    if rule is _limit_tokens:
        tiles = f"larger ones cut into at most {part.max_tiles} tiles of {part.tile_size} x {part.tile_size} pixels"
        return f"scaled to {part.min_image_tokens} to {part.max_image_tokens} tokens, {tiles}"
    if rule is _limit_tiles:
        return f"cut into {part.min_patches} to {part.max_patches} tiles of {size.width} x {size.height} pixels"
    if rule is _limit_edge:
        return f"scaled to a longest edge of {size.longest_edge:,} pixels"
    tiles = getattr(part, "image_grid_pinpoints", None)
    fixed = " and ".join(f"{name.replace('_', ' ')} {pixels:,}" for name, pixels in size)
    return f"cut into tiles of {fixed}, in {len(tiles)} layouts" if tiles else f"scaled to {fixed}"


def _rule(part):
    """The function that sets a processor's limits, or None where it has none."""
    size = getattr(part, "size", None) or SizeDict()
    if hasattr(part, "merge_size") and size.shortest_edge and size.longest_edge:
        return _limit_area
    if hasattr(part, "max_image_tokens"):
        return _limit_tokens
    if hasattr(part, "crop_to_patches"):
        return _limit_tiles
    return _limit_edge if size.longest_edge else None


def _limit_area(part, min_pixels: int | None, max_pixels: int | None) -> None:
    cell = (part.patch_size * part.merge_size) ** 2
    smallest, largest = _checked(part.size.shortest_edge, part.size.longest_edge, min_pixels, max_pixels, cell)
    part.size = SizeDict(shortest_edge=smallest, longest_edge=largest)


def _limit_tokens(part, min_pixels: int | None, max_pixels: int | None) -> None:
    cell = (part.encoder_patch_size * part.downsample_factor) ** 2
    pixels = (part.min_image_tokens * cell, part.max_image_tokens * cell)
    smallest, largest = _checked(*pixels, min_pixels, max_pixels, cell)
    part.max_image_tokens = min(part.max_image_tokens, largest // cell)  # larger pictures are cut into tiles
    part.min_image_tokens = min(-(-smallest // cell), part.max_image_tokens)
    if max_pixels is not None:
        part.max_tiles = max(min(part.max_tiles, max_pixels // part.tile_size**2), 1)
        part.min_tiles = min(part.min_tiles, part.max_tiles)
        part.do_image_splitting = part.do_image_splitting and part.max_tiles > 1


def _limit_tiles(part, _, max_pixels: int) -> None:
    tile = part.size.height * part.size.width
    _at_least(max_pixels, tile, "one tile")
    part.max_patches = min(part.max_patches, max_pixels // tile)
    part.min_patches = min(part.min_patches, part.max_patches)


def _limit_edge(part, _, max_pixels: int) -> None:
    step = (getattr(part, "max_image_size", None) or {}).get("longest_edge", 1)  # Idefics3 cuts whole tiles
    _at_least(max_pixels, step**2, "one tile")
    longest = min(part.size.longest_edge, isqrt(max_pixels) // step * step)
    part.size = SizeDict(longest_edge=longest)


def _checked(smallest: int, largest: int, min_pixels: int | None, max_pixels: int | None, cell: int) -> tuple[int, int]:
    """The (smallest, largest) number of pixels: the given limits, else those of the checkpoint."""
    smallest = smallest if min_pixels is None else min_pixels
    largest = largest if max_pixels is None else max_pixels
    if min_pixels is None:
        smallest = min(smallest, largest)  # a maximum below the checkpoint's minimum lowers the minimum too
    if not 0 < smallest <= largest or largest < cell:
        raise UserError(
            f"min_pixels={smallest} and max_pixels={largest}: need 0 < min_pixels <= max_pixels, and max_pixels of at "
            f"least {cell} (one cell of the model's grid). Raise max_pixels or lower min_pixels."
        )
    return smallest, largest


def _at_least(max_pixels: int, pixels: int, what: str) -> None:
    if max_pixels < pixels:
        raise UserError(f"max_pixels={max_pixels} is less than {what} of the model ({pixels} pixels): raise it.")
