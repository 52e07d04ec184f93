"""Encoded prompts as vLLM's inputs: ids with expanded placeholders and ready tensors, so that no processor runs."""

from __future__ import annotations

from vllm.inputs.engine import EngineInput, mm_input, tokens_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

from model.media_layouts import PIXELS
from model.vlm_module import EncodedPrompt
from trainer.engines.requests import Request


def engine_input(request: Request, config, version: int) -> EngineInput:
    """The input of a request.

    The names of pictures and the cache salt carry the version of the weights, so that nothing that other weights
    computed can be found.

    Args:
        config: the model's config, for the ids of placeholders and the tower's merging.
        version: of the weights.
    """
    salt = f"weights {version}"
    if not request.media:
        return tokens_input(request.ids, cache_salt=salt)
    items: dict[str, list] = {}
    names: dict[str, list[str]] = {}
    places: dict[str, list[PlaceholderRange]] = {}
    for start, prompt in request.media:
        for kind, name, item, tokens, at in _items(prompt, config):
            items.setdefault(kind, []).append(item)
            names.setdefault(kind, []).append(f"{version}:{name}")
            places.setdefault(kind, []).append(PlaceholderRange(offset=start + at, length=tokens))
    return mm_input(request.ids, MultiModalKwargsItems(items), names, places, cache_salt=salt)


def _items(prompt: EncodedPrompt, config) -> list[tuple]:
    """(kind, name, item, tokens, index of its first placeholder) of each picture, then of each video."""
    media, fields = prompt.media, {}
    for kind, (pixels, grids) in PIXELS.items():
        if grids in media:
            fields[pixels] = MultiModalFieldConfig.flat_from_sizes(kind, media[grids].prod(-1))
            fields[grids] = MultiModalFieldConfig.batched(kind, keep_on_cpu=True)
    if "second_per_grid_ts" in media:
        fields["second_per_grid_ts"] = MultiModalFieldConfig.batched("video", keep_on_cpu=True)
    items = MultiModalKwargsItems.from_hf_inputs(media, fields)
    pads = {"image": config.image_token_id, "video": config.video_token_id}
    cell, keys, found = config.vision_config.spatial_merge_size**2, iter(prompt.item_keys), []
    for kind, (_, grids) in PIXELS.items():
        at = 0
        for item in items.get(kind, ()):
            tokens = int(item[grids].data.prod()) // cell
            at = prompt.ids.index(pads[kind], at)
            name = next(keys)
            if "second_per_grid_ts" in item:  # of two equal videos, positions, and so keys and values, may differ
                name += f" {float(item['second_per_grid_ts'].data)}"
            found.append((kind, name, item, tokens, at))
            at += tokens
    return found
