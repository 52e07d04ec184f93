"""Any vision-language model of transformers whose processor takes text and pictures.

Everything that differs between families is read from the checkpoint: placeholders from the config, media tensors from
the processor, position axes from the model's own rule, LoRA targets and towers from the names of its modules. A family
is a subclass only where it differs (`model/qwen_module.py`, `model/families.py`).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Sequence

import torch
from torch import nn
from transformers import AutoModel, AutoModelForImageTextToText, AutoProcessor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from model.control_tokens import media_tokens, turn_tokens
from model.media_layouts import KINDS, PIXELS, digest, grid_features, items, joined
from model.pixel_limits import limit_pixels
from model.positions import RESTARTED, restarted_after_media
from model.vlm_module import (
    TURN_TOKENS,
    EncodedPrompt,
    VLMModule,
    on_device,
    refuse_in_text,
    tools_in,
    typed_parts,
    unloadable,
)
from task.errors import UserError
from task.rewards.frames import processed_size

LANGUAGE = re.compile(r"(^|\.)(language_model|text_model|lm_head)\.")
VISION = re.compile(r"(^|\.)(visual|vision_tower|vision_model|vision_encoder)\.")
MERGER = re.compile(r"(^|\.)(\w*merger\w*|\w*projector\w*|connector|adapter)\.")
BLOCK = re.compile(r"\.\d+\.(.+)$")
# The rate at which qwen-vl-utils samples videos; assumed for videos without a stated rate.
DEFAULT_VIDEO_FPS = 2.0
BEFORE, AFTER = "before the picture", "after the picture"


class VisionLanguageModule(VLMModule):
    """A vision-language model with causal attention."""

    auto_class = AutoModelForImageTextToText
    vision_modules = r"(?!(.*\.)?(language_model|text_model|lm_head)(\.|$)).*"

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
        if processor.tokenizer.pad_token_id is None:
            processor.tokenizer.pad_token = processor.tokenizer.eos_token
        for part in self._limited(processor):
            limit_pixels(part, min_pixels, max_pixels)
        self.processor = processor
        self._check_header(name)
        return processor

    def _limited(self, processor) -> list:
        """The parts of the processor that pixel limits apply to."""
        return [processor.image_processor]

    def _check_processor(self, name: str, processor) -> None:
        known = media_tokens(processor.tokenizer)
        wrong = {kind: token for kind, token in self.placeholders.items() if token not in known.values()}
        if wrong:
            raise UserError(
                f"{name}: the tokenizer gives its media tokens the ids {known}, but the model expects {wrong}: copy "
                "the tokenizer files of the model."
            )
        if not processor.chat_template:
            raise UserError(f"{name} has no chat template: copy chat_template.jinja from the model it comes from.")

    @functools.cached_property
    def placeholders(self) -> dict[str, int]:
        """ "image" and "video" -> id of the token that stands for one feature of a picture or video."""
        ids = {kind: getattr(self.config, f"{kind}_token_id", None) for kind in KINDS}
        return {kind: token for kind, token in ids.items() if token is not None}

    # --- Parts of the model ----------------------------------------------------------------------------------------

    def lora_target_modules(self, model, vision=False):
        """The linear layers inside the numbered blocks of the language model, and with `vision` all of its tower.

        Read from the model, since names differ between families. Experts that are one tensor are not linear layers.
        """
        found = {"language": set(), "vision": set(), "merger": set()}
        for name, part in model.named_modules():
            if isinstance(part, nn.Linear):
                found[self.tower_of(f"{name}.")].add(name)
        places = sorted({match[1] for name in found["language"] if (match := BLOCK.search(name))})
        if not places:
            raise UserError(
                f"{type(model).__name__} has no linear layers in numbered blocks of its language model, so LoRA has no "
                "default place: give lora_target_modules."
            )
        language = r".*(language_model|text_model)\..*\.\d+\.(" + "|".join(map(re.escape, places)) + ")"
        if not vision:
            return language
        others = sorted({re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", re.escape(name)) for name in _bare(found)})
        return f"({language})|(.*({'|'.join(others)}))"

    def tower_of(self, parameter_name):
        """Everything between the tower and the language model, such as a token for the end of a row, is the merger."""
        if LANGUAGE.search(parameter_name):
            inside = VISION.search(parameter_name)  # a CLIP tower may call its own part vision_model.text_model
            if inside is None or inside.start() > LANGUAGE.search(parameter_name).start():
                return "language"
        if MERGER.search(parameter_name) or not VISION.search(parameter_name):
            return "merger"
        return "vision"

    def _media_token_ids(self, tokenizer):
        return set(media_tokens(tokenizer).values()) | set(self.placeholders.values())

    # --- Prompts ---------------------------------------------------------------------------------------------------

    def render(self, messages):
        return self._rendered(typed_parts(messages), tools_in(messages))

    def encode(self, messages, images=(), videos=()):
        refuse_in_text(messages, tuple(media_tokens(self.tokenizer)), "part of a picture")
        borders = turn_tokens(self.tokenizer, str(self.processor.chat_template))
        refuse_in_text(messages, (*TURN_TOKENS, *borders), "the border of a turn")
        images = _in_order(messages, "image", images)
        videos = _in_order(messages, "video", videos)
        if videos and getattr(self.processor, "video_processor", None) is None:
            raise UserError(f"{len(videos)} videos, but the processor of {self.config.model_type} takes pictures only.")
        given = {"images": images} if images else {}
        if videos:
            # Some processors would sample once more from the frames that the dataset has sampled.
            given |= {"videos": videos, "do_sample_frames": False}
            given["video_metadata"] = [_sampling(video) for video in videos]
        encoded = self._processed(self.render(messages), **given)
        sizes = [image.size for image in images] + [_frame_size(video) for video in videos]
        return self._encoded(encoded["input_ids"][0].tolist(), self._media_of(encoded), sizes, "the prompt")

    def encode_observation(self, parts):
        ids, media, sizes = [], [], []
        for part in parts:
            if part["type"] == "image":
                encoded = self._processed(self.picture_text, images=[part["image"]], add_special_tokens=False)
                ids += encoded["input_ids"][0].tolist()
                media.append(self._media_of(encoded))
                sizes.append(part["image"].size)
            else:
                ids += self._part_ids(part)
        return self._encoded(ids, joined(media), sizes, "the observation")

    def _processed(self, text: str, **given):
        """The processor's output; as in its own chat method, the template writes the first token if it has one."""
        bos = self.tokenizer.bos_token
        if bos is not None and text.startswith(bos):
            given["add_special_tokens"] = False
        return self.processor(text=[text], return_tensors="pt", **given)

    @functools.cached_property
    def picture_text(self) -> str:
        """What the chat template writes for a picture, with one unexpanded placeholder."""
        words = [{"type": "text", "text": text} for text in (BEFORE, AFTER)]
        rendered = self._rendered([{"role": "user", "content": [words[0], {"type": "image"}, words[1]]}], None)
        between = rendered[rendered.index(BEFORE) + len(BEFORE) : max(rendered.find(AFTER), 0)]
        # Some templates put all pictures first, whatever the order of the parts.
        return between if self.processor.image_token in between else self.processor.image_token

    @functools.cached_property
    def _model_class(self) -> type[nn.Module]:
        return self.auto_class._model_mapping[type(self.config)]

    @functools.cached_property
    def _input_names(self) -> set[str]:
        """What the model can be given beside token ids; processors return more than that."""
        text = {"input_ids", "attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids"}
        return set(inspect.signature(self._model_class.forward).parameters) - text

    def _media_of(self, encoded) -> dict[str, torch.Tensor]:
        return {key: torch.as_tensor(values) for key, values in encoded.items() if key in self._input_names}

    def _encoded(self, ids: list[int], media: dict, sizes: list[tuple[int, int]], what: str) -> EncodedPrompt:
        if media and not any(grids in media for _, grids in PIXELS.values()):
            counts = [[ids.count(self.placeholders.get(kind, -1)) for kind in KINDS]]
            media = media | {"placeholders": torch.tensor(counts)}  # no tensor of the layout tells how many
        self.check_media(ids, media, what)
        position_ids = self._positions(ids, media)
        item_keys = [digest(*item) for item in items(media)]
        return EncodedPrompt(
            ids=ids,
            position_ids=position_ids,
            next_position=int(position_ids.max()) + 1,
            media=media,
            image_sizes=sizes,
            processed_sizes=self._processed_sizes(media, sizes),
            item_keys=item_keys,
            media_key=" ".join([*item_keys, *map(str, media.get("second_per_grid_ts", torch.empty(0)).tolist())]),
        )

    def check_media(self, ids, media, what):
        grids = any(grids in media for _, grids in PIXELS.values())
        merge = self.config.vision_config.spatial_merge_size if grids else 1
        kinds = self._kinds(list(ids))
        for number, kind in enumerate(self.placeholders, start=1):
            features, count = grid_features(media, kind, merge)
            of = "" if "placeholders" in media else f" of {count} {kind}s"
            if "placeholders" in media:
                features = int(media["placeholders"][:, KINDS.index(kind)].sum())
            pads = kinds.count(number)
            if pads != features:
                raise UserError(
                    f"{what} has {pads} {kind} placeholder tokens for {features} {kind} features{of}: each feature "
                    "needs its own placeholder, so leave prompts uncut and never sample "
                    f"{self.tokenizer.convert_ids_to_tokens(self.placeholders[kind])}."
                )

    def _kinds(self, ids: list[int]) -> list[int]:
        """Of each token: 0 text, 1 picture, 2 video."""
        if self._position_rule is not None:  # GLM-V has one token for both
            return self.processor.create_mm_token_type_ids([ids])[0]
        number = {token: place for place, token in enumerate(self.placeholders.values(), start=1)}
        return [number.get(token, 0) for token in ids]

    @functools.cached_property
    def _position_rule(self):
        """The model without its weights, for its own rule of positions on three axes; None where it has none."""
        model = AutoModel._model_mapping[type(self.config)]
        if not hasattr(model, "get_rope_index"):
            return None
        shell = model.__new__(model)
        nn.Module.__init__(shell)
        shell.config = self.config
        return shell

    def _positions(self, ids: list[int], media: dict) -> torch.Tensor:
        """(3, P) rotary positions by the model's own rule, or (P,) for a model with one axis."""
        if self._position_rule is None:
            return torch.arange(len(ids))
        rule = self._position_rule.get_rope_index
        given = {key: media[key] for key in inspect.signature(rule).parameters if key in media}
        kinds = torch.tensor(self._kinds(ids))
        position_ids = rule(torch.tensor([ids]), mm_token_type_ids=kinds[None], **given)[0][:, 0]
        return restarted_after_media(position_ids, kinds) if self.config.model_type in RESTARTED else position_ids

    def _processed_sizes(self, media: dict, sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The sizes after resizing where the layout has a grid, else the originals."""
        grids = [media[key] for _, key in PIXELS.values() if key in media]
        patch = self.config.vision_config.patch_size if grids else 1
        return [processed_size(row, patch) for grid in grids for row in grid.tolist()] if grids else sizes

    # --- Passes ----------------------------------------------------------------------------------------------------

    def has_fixed_features(self, model):
        bare = model.get_base_model() if hasattr(model, "get_base_model") else model
        takes_features = "mm_encoder_outputs" in inspect.signature(type(bare).forward).parameters
        return takes_features and hasattr(bare, "get_image_features") and super().has_fixed_features(model)

    def media_features(self, model, prompt, known):
        found: dict[str, list[torch.Tensor]] = {}
        for key, (kind, tensors) in zip(prompt.item_keys, items(prompt.media), strict=True):
            if key not in known:
                encode = getattr(model, f"get_{kind}_features")
                names = inspect.signature(encode).parameters
                given = {name: values.to(model.device) for name, values in tensors.items() if name in names}
                known[key] = self._features(encode(**given))
            found.setdefault(kind, []).append(known[key])
        return found

    def _features(self, output) -> torch.Tensor:
        """One item's features as the tower gave them: (tokens, hidden), or (tiles, tokens, hidden) unsplit."""
        pooled = output.pooler_output
        return pooled if isinstance(pooled, torch.Tensor) else torch.cat(list(pooled))

    def _as_output(self, features: list[torch.Tensor]):
        """The features of several items in the form in which the model's own towers return them."""
        if features[0].dim() == 2:
            return BaseModelOutputWithPooling(pooler_output=tuple(features))
        return BaseModelOutputWithPooling(pooler_output=torch.cat([each.flatten(0, -2) for each in features])[None])

    def batch_media(self, prompts, device=None):
        prompts = [prompt for prompt in prompts if prompt.media]
        if not any(prompt.features for prompt in prompts):
            media = joined(self._one_length([prompt.media for prompt in prompts]))
            return {key: on_device(values, device) for key, values in media.items() if key != "placeholders"}
        assert all(prompt.features for prompt in prompts), "some prompts have features, others have pixels"
        kinds = dict.fromkeys(kind for prompt in prompts for kind in prompt.features)
        found = {kind: [item for prompt in prompts for item in prompt.features.get(kind, ())] for kind in kinds}
        return {"mm_encoder_outputs": {kind: self._as_output(features) for kind, features in found.items()}}

    def _one_length(self, parts: list[dict]) -> list[dict]:
        """The media of a batch; UserError if no grid or mask would tell a model how many frames each video has."""
        frames = {part["pixel_values_videos"].shape[1] for part in parts if "pixel_values_videos" in part}
        if len(frames) > 1 and not any("video_grid_thw" in part for part in parts):
            raise UserError(
                f"videos of {', '.join(map(str, sorted(frames)))} frames are in one batch, and "
                f"{self.config.model_type} takes videos of one length together: cut them to one number of frames, or "
                "freeze the vision tower, which then encodes each by itself."
            )
        return parts


def _bare(found: dict[str, set[str]]) -> set[str]:
    """Names of the tower's and the merger's linear layers without what wrappers put before them."""
    return {re.sub(r"^(base_model\.)?(model\.)*", "", name) for tower in ("vision", "merger") for name in found[tower]}


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
