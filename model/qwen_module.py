"""Qwen2.5-VL: pictures of any size (in multiples of 28 pixels), rotary positions on three axes, answers in pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers.image_utils import SizeDict
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

from model.vlm_module import TURN_TOKENS, EncodedPrompt, VLMModule, refuse_in_text, tools_in, typed_parts, unloadable
from task.errors import UserError
from task.rewards.frames import processed_size

PADS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
MEDIA_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", *PADS.values())
PIXELS = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}
MEDIA_KEYS = (*PIXELS["image"], *PIXELS["video"], "second_per_grid_ts")
LANGUAGE_LINEARS = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
VISION_LINEARS = r".*visual\.(blocks\.\d+\.(attn\.(qkv|proj)|mlp\.(gate|up|down)_proj)|merger\.mlp\.[02])"
# The rate at which qwen-vl-utils samples videos; assumed for videos without a stated rate.
DEFAULT_VIDEO_FPS = 2.0


class Qwen2_5VLModule(VLMModule):
    """Qwen2.5-VL of any size. Its answers are in pixels of the processed picture."""

    auto_class = AutoModelForImageTextToText
    vision_modules = r"(.*\.)?visual\..*"

    def load_processor(self, name, min_pixels=None, max_pixels=None, revision=None, trust_remote_code=False):
        """Loads the processor; the limits are in pixels of one picture or video frame after resizing."""
        try:
            processor = AutoProcessor.from_pretrained(
                name, trust_remote_code=trust_remote_code, **({} if revision is None else {"revision": revision})
            )
        except Exception as error:
            raise UserError(unloadable(name, "processor", error)) from error
        self._check_processor(name, processor)
        self._check_special_ids(name, processor.tokenizer)
        processor.tokenizer.padding_side = "left"
        for part in (processor.image_processor, processor.video_processor):
            _limit_pixels(part, min_pixels, max_pixels)
        self.processor = processor
        self._check_header(name)
        return processor

    def _check_processor(self, name: str, processor) -> None:
        pads = processor.tokenizer.convert_tokens_to_ids(list(PADS.values()))
        if pads != [self.config.image_token_id, self.config.video_token_id]:
            raise UserError(
                f"{name}: the tokenizer gives {' and '.join(PADS.values())} the ids {pads}, but the model expects "
                f"{[self.config.image_token_id, self.config.video_token_id]}: copy the tokenizer files of the model."
            )
        if not processor.chat_template:
            raise UserError(f"{name} has no chat template: copy chat_template.jinja from the model it comes from.")

    def lora_target_modules(self, model, vision=False):
        return f"({LANGUAGE_LINEARS})|({VISION_LINEARS})" if vision else LANGUAGE_LINEARS

    def tower_of(self, parameter_name):
        if "visual.merger." in parameter_name:
            return "merger"
        return "vision" if "visual." in parameter_name else "language"

    def _media_token_ids(self, tokenizer):
        return set(tokenizer.convert_tokens_to_ids(list(MEDIA_TOKENS)))

    def render(self, messages):
        return self._rendered(typed_parts(messages), tools_in(messages))

    def encode(self, messages, images=(), videos=()):
        refuse_in_text(messages, MEDIA_TOKENS, "part of a picture")
        refuse_in_text(messages, TURN_TOKENS, "the border of a turn")
        images = _in_order(messages, "image", images)
        videos = _in_order(messages, "video", videos)
        given = {}
        if images:
            given["images"] = images
        if videos:
            given |= {"videos": videos, "video_metadata": [_sampling(video) for video in videos]}
        encoded = self.processor(text=[self.render(messages)], return_tensors="pt", **given)

        sizes = [image.size for image in images] + [_frame_size(video) for video in videos]
        return self._encoded(encoded["input_ids"][0].tolist(), encoded, sizes, "the prompt")

    def encode_observation(self, parts):
        images = [part["image"] for part in parts if part["type"] == "image"]
        encoded = self.processor.image_processor(images=images, return_tensors="pt") if images else {}
        cell = self.config.vision_config.spatial_merge_size**2
        features = iter(encoded["image_grid_thw"].prod(dim=1) // cell if images else ())
        start, end, pad = self.tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>", PADS["image"]])
        ids = []
        for part in parts:
            ids += [start, *[pad] * int(next(features)), end] if part["type"] == "image" else self._part_ids(part)
        return self._encoded(ids, encoded, [image.size for image in images], "the observation")

    def _encoded(self, ids: list[int], encoded, sizes: list[tuple[int, int]], what: str) -> EncodedPrompt:
        media = {key: torch.as_tensor(encoded[key]) for key in MEDIA_KEYS if key in encoded}
        self.check_media(ids, media, what)
        position_ids = self._positions(ids, media)
        item_keys = [_digest(*item) for item in _items(media)]
        return EncodedPrompt(
            ids=ids,
            position_ids=position_ids,
            next_position=int(position_ids.max()) + 1,
            media=media,
            image_sizes=sizes,
            processed_sizes=self._processed_sizes(media),
            item_keys=item_keys,
            media_key=" ".join([*item_keys, *map(str, media.get("second_per_grid_ts", torch.empty(0)).tolist())]),
        )

    def check_media(self, ids, media, what):
        merge = self.config.vision_config.spatial_merge_size**2
        for kind, token_id, grid in (
            ("image", self.config.image_token_id, media.get("image_grid_thw")),
            ("video", self.config.video_token_id, media.get("video_grid_thw")),
        ):
            features = 0 if grid is None else int(grid.prod(dim=1).sum()) // merge
            pads = sum(token == token_id for token in ids)
            if pads != features:
                raise UserError(
                    f"{what} has {pads} {kind} placeholder tokens for {features} {kind} features of "
                    f"{0 if grid is None else len(grid)} {kind}s: each feature needs its own placeholder, "
                    f"so leave prompts uncut and never sample {PADS[kind]}."
                )

    def media_features(self, model, prompt, known):
        encode = {"image": model.get_image_features, "video": model.get_video_features}
        found: dict[str, list[torch.Tensor]] = {}
        for key, (kind, pixels, grid) in zip(prompt.item_keys, _items(prompt.media), strict=True):
            if key not in known:
                known[key] = encode[kind](pixels.to(model.device), grid.to(model.device)).pooler_output[0]
            found.setdefault(kind, []).append(known[key])
        return found

    def _positions(self, ids: list[int], media: dict) -> torch.Tensor:
        """(3, P) rotary positions by transformers' own function, which needs the config but no weights."""
        input_ids = torch.tensor([ids])
        kinds = (input_ids == self.config.image_token_id).int() + 2 * (input_ids == self.config.video_token_id).int()
        rule = SimpleNamespace(config=self.config)
        rule.get_vision_position_ids = Qwen2_5_VLModel.get_vision_position_ids.__get__(rule)
        position_ids, _ = Qwen2_5_VLModel.get_rope_index(
            rule,
            input_ids,
            mm_token_type_ids=kinds,
            image_grid_thw=media.get("image_grid_thw"),
            video_grid_thw=media.get("video_grid_thw"),
            second_per_grid_ts=media.get("second_per_grid_ts"),
        )
        return position_ids[:, 0]

    def _processed_sizes(self, media: dict) -> list[tuple[int, int]]:
        patch = self.config.vision_config.patch_size
        grids = [media[key] for key in ("image_grid_thw", "video_grid_thw") if key in media]
        return [processed_size(row, patch) for grid in grids for row in grid.tolist()]


def _limit_pixels(part, min_pixels: int | None, max_pixels: int | None) -> None:
    """Sets the pixel limits of a picture or video processor, in the form that is saved with it."""
    smallest = part.size["shortest_edge"] if min_pixels is None else min_pixels
    largest = part.size["longest_edge"] if max_pixels is None else max_pixels
    cell = (part.patch_size * part.merge_size) ** 2
    if min_pixels is None:
        smallest = min(smallest, largest)  # a maximum below the checkpoint's minimum lowers the minimum too
    if not 0 < smallest <= largest or largest < cell:
        raise UserError(
            f"min_pixels={smallest} and max_pixels={largest}: need 0 < min_pixels <= max_pixels, and max_pixels of at "
            f"least {cell} (one cell of the model's grid). Raise max_pixels or lower min_pixels."
        )
    part.size = SizeDict(shortest_edge=smallest, longest_edge=largest)


def _in_order(messages: list[dict], kind: str, media: Sequence) -> list:
    """The media in the order in which the turns refer to them; UserError unless each is referred to exactly once."""
    parts = [part for message in messages if not isinstance(message["content"], str) for part in message["content"]]
    named = [part.get("index", 0) for part in parts if part["type"] == kind]
    if sorted(named) != list(range(len(media))):
        raise UserError(
            f"the turns name {kind}s {named} but there are {len(media)} {kind}s: name each of them once, from 0 on."
        )
    return [media[index] for index in named]


def _sampling(video) -> dict:
    """Video metadata for frames that are already sampled; their rate determines the time axis."""
    rate = getattr(video, "fps", DEFAULT_VIDEO_FPS)
    return {"total_num_frames": len(video), "fps": rate, "frames_indices": list(range(len(video)))}


def _frame_size(video) -> tuple[int, int]:
    """(width, height) of PIL frames or of a (frames, channels, height, width) tensor."""
    if hasattr(video, "shape"):
        return int(video.shape[-1]), int(video.shape[-2])
    return video[0].size


def _items(media: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """(kind, (patches, values per patch) pixels, (1, 3) grid) of each picture, then of each video."""
    for kind, (pixels, grids) in PIXELS.items():
        if pixels in media:
            patches = media[grids].prod(dim=1).tolist()
            for values, grid in zip(media[pixels].split(patches), media[grids].split(1), strict=True):
                yield kind, values, grid


def _digest(kind: str, pixels: torch.Tensor, grid: torch.Tensor) -> str:
    digest = hashlib.blake2b(f"{kind}{grid.tolist()}".encode(), digest_size=16)
    digest.update(pixels.contiguous().numpy())
    return digest.hexdigest()
