"""The interface of a model family: loading, encoding, positions, freezing, and the names of its parts.

Media are handled here and nowhere else: a row is encoded once (`encode`), and the same `EncodedPrompt` is used in the
rollout and in the old, reference and policy passes, so no pass can lack its picture or use other positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from jinja2 import TemplateError

from model.chat_templates import check_template_kwargs, opened_by
from model.coordinates import COORDINATE_FRAMES
from model.quantised import device_map_of, keep_one_arithmetic
from task.errors import UserError

# P prompt tokens
DTYPES = ("auto", "bfloat16", "float16", "float32")
TOWERS = ("language", "merger", "vision")
# Both end an answer in every model that has them, even if the checkpoint's config names only one of the two.
END_TOKENS = ("<|im_end|>", "<|endoftext|>")
TURN_TOKENS = ("<|im_start|>", *END_TOKENS)
PARTS = 'give a text, or a list of {"type": "text", "text": ...} and {"type": "image" or "video", "index": number}.'


@dataclass
class EncodedPrompt:
    """One prompt, ready for the model.

    Args:
        ids: P token ids with expanded media placeholders, never truncated; they end with the assistant's turn header.
        media: further model inputs, on the CPU, in the layout of the family's processor: for Qwen pixel_values
            (patches, values per patch) and image_grid_thw (pictures, 3), pixel_values_videos and video_grid_thw,
            second_per_grid_ts; where no grid tells it, also placeholders (1, 2), the numbers of placeholder tokens of
            pictures and videos. Empty for text.
        position_ids: (3, P) for models with multimodal rotary positions (time, height, width), else (P,).
        next_position: position of the first completion token on every axis; token d is at next_position + d.
        image_sizes: (width, height) of the originals in pixels: pictures first, then videos (one frame).
        processed_sizes: the same after resizing, as the model sees them (from the grid; the originals without one).
        item_keys: one per picture, then one per video, or one for all of them where the layout has no grid; equal if
            and only if they are equal after processing.
        media_key: equal for two prompts if and only if their media are equal; "" for text.
        features: "image" and "video" -> the features of each item, (tokens, hidden size) or as the family's tower
            returns them, on the model's device; every pass over the prompt is given them in place of the pixels. None:
            each pass runs the tower.
    """

    ids: list[int]
    position_ids: torch.Tensor
    next_position: int
    media: dict[str, torch.Tensor] = field(default_factory=dict)
    image_sizes: list[tuple[int, int]] = field(default_factory=list)
    processed_sizes: list[tuple[int, int]] = field(default_factory=list)
    item_keys: list[str] = field(default_factory=list)
    media_key: str = ""
    features: dict[str, list[torch.Tensor]] | None = None


class VLMModule(ABC):
    """A family of models. An instance belongs to one checkpoint and keeps its config and processor.

    Attributes:
        coordinate_frame: the frame in which the model writes coordinates, `processed` or `norm1000`
            (model/coordinates.py); None if that is not known.
        template_kwargs: what the chat template is told besides the turns, such as {"enable_thinking": False}.
    """

    auto_class: type  # the transformers Auto class that loads the family
    vision_modules: str | None = None  # regular expression over the module paths of vision tower and merger, if any
    sees_both_ways = False  # whether the tokens of a picture attend to each other in both directions
    coordinate_frame: str | None = None

    def __init__(self, config):
        self.config = config
        self.coordinate_frame = COORDINATE_FRAMES.get(config.model_type, self.coordinate_frame)
        self.processor = None
        self.template_kwargs: dict = {}
        self._stated_eos: set[int] = _as_set(getattr(config.get_text_config(), "eos_token_id", None))

    def load_model(
        self,
        name: str,
        dtype: str,
        attn_implementation: str | dict | None = None,
        quantization_config=None,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ):
        """Loads the weights of `name` (folder or hub name) on the CPU or, if quantised, on this process's GPU.

        Args:
            dtype: one of `DTYPES`; `auto` is the checkpoint's own. There is no default, so float32 is always explicit.
            attn_implementation: None leaves the choice to transformers; a dict sets it per sub-model.

        Raises UserError for an unknown dtype, a folder that is an adapter, and a checkpoint that lacks weights.
        """
        if dtype not in DTYPES:
            raise UserError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}: choose one of them.")
        wanted = {"attn_implementation": attn_implementation, "quantization_config": quantization_config}
        wanted |= {"revision": revision, "device_map": device_map_of(quantization_config)}
        try:
            model, info = self.auto_class.from_pretrained(
                name,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                **{key: value for key, value in wanted.items() if value is not None},
            )
        except Exception as error:
            raise UserError(unloadable(name, "model", error)) from error
        missing = sorted(info["missing_keys"])
        if missing and quantization_config is None:
            raise UserError(
                f"{name}: {len(missing)} weights of {type(model).__name__} are not in the checkpoint (first: "
                f"{missing[0]}), so they would be random: give a complete checkpoint of this architecture."
            )
        self._stated_eos |= _as_set(getattr(model.generation_config, "eos_token_id", None))
        keep_one_arithmetic(model)
        return model

    @abstractmethod
    def load_processor(
        self,
        name: str,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ):
        """Loads and keeps the processor (or tokenizer), with left padding; a limit of None keeps the checkpoint's."""

    def _check_special_ids(self, name: str, tokenizer) -> None:
        """UserError if the tokenizer's padding or end token is outside the model's vocabulary."""
        size = self.config.get_text_config().vocab_size
        for what in ("pad_token", "eos_token"):
            token = getattr(tokenizer, f"{what}_id")
            if token is not None and token >= size:
                raise UserError(
                    f"{name}: the tokenizer's {what} {getattr(tokenizer, what)} has the id {token}, but the model has "
                    f"{size} tokens: copy the tokenizer files of the model, or name a {what} that it has."
                )

    @abstractmethod
    def lora_target_modules(self, model, vision: bool = False) -> str:
        """A regular expression over full module paths for peft.

        It matches the linear layers of the language model's blocks, never the LM head; with `vision` also those of the
        vision tower and the merger.
        """

    @abstractmethod
    def render(self, messages: list[dict]) -> str:
        """The prompt as text by the chat template, up to the assistant's turn header, with unexpanded placeholders."""

    def _rendered(self, turns: list[dict], tools: list[dict] | None) -> str:
        """The turns as text by the chat template. UserError if it rejects them or drops some of their text."""
        options = self.template_kwargs | {"tools": tools, "add_generation_prompt": True, "tokenize": False}
        try:
            rendered = self.processor.apply_chat_template(turns, **options)
        except (TemplateError, TypeError) as error:
            roles = ", ".join(turn["role"] for turn in turns)
            raise UserError(
                f"the model's chat template refuses these turns: {roles} ({error}): leave out what it names, for "
                "example the task's system_prompt, or put another chat_template.jinja into the model's folder."
            ) from error
        for turn in turns:
            parts = [{"text": turn["content"]}] if isinstance(turn["content"], str) else turn["content"]
            if any(part.get("text", "").strip() not in rendered for part in parts):
                raise UserError(
                    f"the model's chat template leaves out text of the {turn['role']} turn: do without that turn, or "
                    "put another chat_template.jinja into the model's folder."
                )
        return rendered

    def _check_header(self, name: str) -> None:
        """UserError if the chat template refuses a plain question, or does not read one of `template_kwargs`."""
        check_template_kwargs(self.template_kwargs, self.processor.chat_template)
        self.render([{"role": "user", "content": "?"}])

    @property
    def opened_thought(self) -> str:
        """What the chat template has already written of every completion: "", or the opening tag of a thought.

        It is part of the prompt, so the policy continues inside the thought; `completion_texts` puts it back.
        """
        return opened_by(self.render([{"role": "user", "content": "?"}]))

    @abstractmethod
    def encode(self, messages: list[dict], images: Sequence = (), videos: Sequence = ()) -> EncodedPrompt:
        """Encodes one prompt whole.

        Args:
            messages: turns as in a dataset row; content may be a string or typed parts, with the same result.
            images: decoded RGB pictures (PIL), which parts refer to by index.
            videos: decoded videos in a form that the processor accepts; an attribute `fps` is the rate after sampling.

        Raises UserError if messages and media do not match.
        """

    @abstractmethod
    def encode_observation(self, parts: Sequence[dict]) -> EncodedPrompt:
        """Encodes an observation: tokens that are inserted unchanged between two sampled parts of a completion.

        Args:
            parts: {"type": "text", "text": ...}, foreign text in which special tokens are encoded as plain characters;
                {"type": "template", "text": ...}, our own text in which they are tokens;
                {"type": "image", "image": PIL}.

        Returns ids, media, and positions that start at 0; `next_position` is the shift of everything after it.
        """

    def _part_ids(self, part: dict) -> list[int]:
        foreign = part["type"] == "text"
        return self.tokenizer(part["text"], add_special_tokens=False, split_special_tokens=foreign)["input_ids"]

    @abstractmethod
    def tower_of(self, parameter_name: str) -> str:
        """Which of `TOWERS` a parameter belongs to, regardless of prefixes that wrappers add to its name."""

    @property
    def tokenizer(self):
        """The tokenizer inside the processor (or the processor itself, for text)."""
        return getattr(self.processor, "tokenizer", self.processor)

    def freeze(self, model, freeze_vision: bool) -> None:
        """With `freeze_vision`, freezes the vision tower and the merger, including adapters on them."""
        for name, parameter in model.named_parameters():
            if freeze_vision and self.tower_of(name) != "language":
                parameter.requires_grad_(False)

    def has_fixed_features(self, model) -> bool:
        """Whether the policy and its reference have the same features of a picture, whatever is trained on them.

        So no parameter of vision tower and merger is trained, and none has an adapter, which a reference may lack.
        """
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        adapted = (BaseTunerLayer, AuxiliaryTrainingWrapper)
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        trained |= {f"{name}." for name, layer in model.named_modules() if isinstance(layer, adapted)}
        return all(self.tower_of(name) == "language" for name in trained)

    def media_features(self, model, prompt: EncodedPrompt, known: dict[str, torch.Tensor]) -> dict[str, list]:
        """The `features` of an encoded prompt. Only items whose key is not in `known` are computed; they are added.

        Each picture and video is a call of its own, so its features do not depend on what else is in the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has no media")

    def eos_token_ids(self, processor, stated: Iterable[int] = ()) -> list[int]:
        """Ids that end an answer: the tokenizer's, the checkpoint's, the family's, and those in `stated`.

        Ids outside the model's vocabulary (such as -1) are left out.
        """
        tokenizer = getattr(processor, "tokenizer", processor)
        vocabulary = tokenizer.get_added_vocab()
        named = {vocabulary[token] for token in END_TOKENS if token in vocabulary}
        found = {*named, *self._stated_eos, *_as_set(tokenizer.eos_token_id), *stated}
        return sorted(token for token in found if 0 <= token < self.config.get_text_config().vocab_size)

    def forbidden_token_ids(self, processor) -> list[int]:
        """Ids that a policy must never sample: padding, ids unknown to the tokenizer, and the family's media tokens.

        Ids that end an answer are never among them, even if one is also the padding token.
        """
        tokenizer = getattr(processor, "tokenizer", processor)
        untold = set(range(len(tokenizer), self.config.get_text_config().vocab_size))
        banned = untold | _as_set(tokenizer.pad_token_id) | self._media_token_ids(tokenizer)
        return sorted(banned - set(self.eos_token_ids(processor)))

    def _media_token_ids(self, tokenizer) -> set[int]:
        return set()

    def completion_texts(self, rows: Iterable[Sequence[int]], eos_ids: Iterable[int]) -> list[str]:
        """The texts of completions as rewards read them: without end, padding and turn tokens at the end.

        A thought that the chat template opened is whole: the text begins with its tag (`opened_thought`). Special
        tokens elsewhere are kept, since a tokenizer may list `<answer>` as one.

        Args:
            rows: token ids of each completion.
            eos_ids: ids that end a completion, in addition to the tokenizer's padding and turn tokens.
        """
        vocabulary = self.tokenizer.get_added_vocab()
        turns = {vocabulary[token] for token in TURN_TOKENS if token in vocabulary}
        closing = {*eos_ids, *turns, *_as_set(self.tokenizer.pad_token_id)}
        opened, texts = self.opened_thought, []
        for row in rows:
            end = len(row)
            while end and row[end - 1] in closing:
                end -= 1
            texts.append(opened + self.tokenizer.decode(row[:end], skip_special_tokens=False))
        return texts

    @abstractmethod
    def check_media(self, ids: Sequence[int], media: dict[str, torch.Tensor], what: str) -> None:
        """Raises UserError, naming `what`, unless `ids` hold one placeholder for each feature of `media`.

        `ids` may be a prompt or a prompt with its completion: without this check a sampled placeholder would cause a
        library error that names no row.
        """

    def token_types(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Model arguments that mark the tokens of pictures, for passes that feed pictures; {} where none are needed."""
        return {}

    def batch_media(self, prompts: Sequence[EncodedPrompt], device: torch.device | str | None = None) -> dict:
        """Media of several prompts as model arguments, concatenated in order; {} if no prompt has any.

        These are the pixels, moved to `device`, or the features where prompts have them (all or none of a batch).
        """
        return {}


def typed_parts(messages: list[dict]) -> list[dict]:
    """The same turns with every content as a list of typed parts, and only the keys that a chat template needs.

    Parts must not have superfluous keys: Qwen2.5-VL's template takes `{"type": "text", "image": None}` for a picture
    and drops the text.

    >>> typed_parts([{"role": "user", "content": "Hi"}])
    [{'role': 'user', 'content': [{'type': 'text', 'text': 'Hi'}]}]
    """
    turns = []
    for message in messages:
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, list | tuple):
            raise UserError(f"the content of a {message.get('role')} turn is {content!r:.60}: {PARTS}")
        turns.append({"role": message["role"], "content": [_bare(part) for part in parts]})
    return turns


def tools_in(messages: list[dict]) -> list[dict] | None:
    """The tool schemas in the first message, for the chat template (see dataset/prompts.py), or None."""
    return messages[0].get("tools")


def refuse_in_text(messages: list[dict], tokens: Sequence[str], taken_for: str) -> None:
    """UserError if a text part contains the spelling of a control token, which would be tokenised as the real one."""
    for message in typed_parts(messages):
        for part in message["content"]:
            found = next((token for token in tokens if token in part.get("text", "")), None)
            if found:
                raise UserError(
                    f"the text of the {message['role']} turn contains {found}, which the model would take for "
                    f"{taken_for}: remove it from the question or the task's template."
                )


def _bare(part: dict) -> dict:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind not in ("image", "video"):
        raise UserError(f"a part of a turn is {part!r:.60}: {PARTS}")
    return {"type": kind}


def unloadable(name: str, what: str, error: Exception) -> str:
    """The error message for something that a library could not load; incomplete folders raise nearly every type."""
    reason = next((line for line in str(error).splitlines() if line.strip()), "no reason given").rstrip(".")
    return (
        f"{name}: the {what} cannot be loaded ({type(error).__name__}: {reason}): give a complete checkpoint, and "
        "settings whose packages are installed here."
    )


def _as_set(ids) -> set[int]:
    if ids is None:
        return set()
    return set(ids) if isinstance(ids, list | tuple) else {ids}


def on_device(values: torch.Tensor, device) -> torch.Tensor:
    """Copied to a GPU from pinned memory, so that the host does not wait for work queued there."""
    if device is not None and torch.device(device).type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
