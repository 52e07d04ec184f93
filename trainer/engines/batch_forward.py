"""Forward passes of a batch: prefill, then one token per row, with explicit positions and a forking cache."""

# R live rows, B prompts, P padded prompt length, L slots in use, A entering rows, m tokens fed to them, V vocabulary

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.engines.host_copies import upload
from trainer.engines.kv_cache import RECURRENT, ForkingCache
from trainer.engines.media_features import MediaFeatures

FORKABLE = {"full_attention", "sliding_attention", *RECURRENT}


@dataclass(frozen=True)
class PendingTokens:
    """Tokens of a row whose keys and values are still to be computed.

    Args:
        states: keys and values (n, F) of everything before them.
        ids: m >= 1 token ids.
        positions: (m,), or (3, m) for multimodal rotary positions.
        media: the EncodedPrompts whose placeholders are among `ids`, in order.
        recurrent: the state (S,) after those n slots, for a model with layers that have one.
    """

    states: Tensor
    ids: list[int]
    positions: Tensor
    media: list = field(default_factory=list)
    recurrent: Tensor | None = None


class BatchForward:
    """Runs the model over rows that grow together.

    All rows end in the same slot; the first `pads` slots of a row are padding and masked. So a row's slots are always
    contiguous, as sliding-window attention requires. Positions are always passed explicitly (three per token for
    mrope), and each row's next position is kept here, so results never depend on state that the model keeps between
    calls.

    Args:
        model: the bare model.
        media: gives the model arguments of the media of prompts and observations.
        prompts: one EncodedPrompt per row.
        pad_id: left padding of the shorter prompts; any id that is not a media placeholder.
    """

    def __init__(self, model, media: MediaFeatures, prompts: list, pad_id: int):
        self.model, self.media, self.prompts, self.pad_id = model, media, prompts, pad_id
        self.device = model.device
        self.prompt_tokens = self.fed_tokens = sum(len(prompt.ids) for prompt in prompts)
        self.axes = prompts[0].position_ids.shape[:-1]
        kinds = layer_kinds(model)
        self.cache, self.cache_argument = ForkingCache(kinds), cache_argument(model)
        self.recurrent, self.mask_axes = not RECURRENT.isdisjoint(kinds), _mask_axes(model)
        longest = max(len(prompt.ids) for prompt in prompts)
        self._set_pads([longest - len(prompt.ids) for prompt in prompts])
        self.next_position = upload([prompt.next_position for prompt in prompts], self.device)

    @property
    def length(self) -> int:
        """L; the last L - pads[row] slots belong to the row."""
        return self.cache.get_seq_length()

    def prefill(self) -> Tensor:
        """Logits (B, V) after each prompt, pictures included."""
        rows = [[self.pad_id] * pad + prompt.ids for pad, prompt in zip(self.pads, self.prompts, strict=True)]
        positions = [F.pad(prompt.position_ids, (pad, 0)) for pad, prompt in zip(self.pads, self.prompts, strict=True)]
        ids, positions = torch.tensor(rows, device=self.device), torch.stack(positions, dim=-2).to(self.device)
        mask = torch.arange(ids.shape[1], device=self.device) >= self._pads if self.padded else None
        media = self.media.arguments(self.prompts)
        if media:
            media |= self.media.module.token_types(ids)
        return self._call(self.cache, ids, positions, mask, **media)[:, -1]

    def select(self, sources: list[int]) -> Tensor:
        """Row i becomes a copy of the old row sources[i]; rows that stay are not copied.

        Returns the sources on the device, for what else is in row order. Everything is uploaded as one tensor.
        """
        moved = [(target, source) for target, source in enumerate(sources) if target != source]
        targets, origins = ([pair[side] for pair in moved] for side in (0, 1))
        pads = [self.pads[source] for source in sources]
        parts = sources, pads, targets, origins
        index = upload([number for part in parts for number in part], self.device)
        order, on_device, targets, origins = index.split([len(part) for part in parts])
        self.cache.move_rows(len(sources), targets, origins)
        self.next_position = self.next_position[order]
        self._set_pads(pads, on_device)
        return order

    def step(self, tokens: Tensor) -> Tensor:
        """Feeds one token per row, (R,), and returns the logits (R, V) after it."""
        self.fed_tokens += len(tokens)
        positions = self.next_position[:, None].expand(*self.axes, -1, 1)
        self.next_position = self.next_position + 1
        return self._call(self.cache, tokens[:, None], positions, self._mask())[:, -1]

    def take(self, row: int, begin: int, end: int) -> Tensor:
        """A copy of the keys and values of slots [begin, end) of a row, (end - begin, F)."""
        return self.cache.take(row, begin, end)

    def state(self, row: int) -> Tensor | None:
        """A copy of the state (S,) after a row's last slot; None for a model without such layers."""
        return self.cache.state(row)

    def enter(self, states: list[Tensor], next_positions: list[int], recurrent: Sequence[Tensor | None] = ()) -> None:
        """Appends rows with the given keys and values (n, F), next positions and, if layers have one, states (S,)."""
        own = [self.length - pad for pad in self.pads] + [len(row) for row in states]
        self.cache.enter_rows(states, max(own), recurrent)
        self.next_position = torch.cat([self.next_position, upload(next_positions, self.device)])
        self._set_pads([max(own) - slots for slots in own])

    def extend(self, rows: list[PendingTokens]) -> tuple[list[Tensor], list[Tensor | None], Tensor]:
        """Computes the pending tokens of rows that are not live, in one pass.

        Returns the keys and values (m, F) of each row's new tokens, the states (S,) after them (None for a model
        without such layers), and the logits (A, V) after each row's last token.

        A recurrent state would go on over the padding behind shorter rows, so that each row is a pass of its own.
        """
        groups = [[row] for row in rows] if self.recurrent else [rows]
        states, after, logits = zip(*map(self._extend, groups), strict=True)
        return [one for group in states for one in group], [one for group in after for one in group], torch.cat(logits)

    def _extend(self, rows: list[PendingTokens]) -> tuple[list[Tensor], list[Tensor | None], Tensor]:
        above, sizes = max(len(row.states) for row in rows), [len(row.ids) for row in rows]
        self.fed_tokens += sum(sizes)
        # New tokens are padded on the right: a row's slots stay contiguous, and no token attends to the padding.
        fill = [max(sizes) - size for size in sizes]
        ids = torch.tensor([row.ids + [self.pad_id] * pad for row, pad in zip(rows, fill, strict=True)])
        positions = torch.stack([F.pad(row.positions, (0, pad)) for row, pad in zip(rows, fill, strict=True)], dim=-2)
        slots = torch.arange(above + max(sizes))
        begin, end = (torch.tensor(values)[:, None] for values in ([above - len(row.states) for row in rows], sizes))
        mask = (slots >= begin) & (slots < above + end)
        ends = sorted(set(sizes))
        keep = upload([size - 1 for size in ends], self.device)
        cache = self.cache.with_rows([row.states for row in rows], [row.recurrent for row in rows])
        inputs = [values.to(self.device) for values in (ids, positions, mask)]
        media = self.media.arguments([prompt for row in rows for prompt in row.media])
        if media:  # types are looked up by slot
            types = self.media.module.token_types(inputs[0])
            media |= {name: F.pad(values, (above, 0)) for name, values in types.items()}
        logits = self._call(cache, *inputs, logits_to_keep=keep, **media)
        logits = logits[range(len(rows)), [ends.index(size) for size in sizes]]
        new = [cache.take(row, above, above + size) for row, size in enumerate(sizes)]
        return new, [cache.state(row) for row in range(len(rows))], logits

    def _set_pads(self, pads: list[int], on_device: Tensor | None = None) -> None:
        self.pads, self.padded = pads, any(pads)
        self._pads = (upload(pads, self.device) if on_device is None else on_device)[:, None]

    def _mask(self) -> Tensor | None:
        """Which of the L + 1 slots a row's newest token attends to: all but the padding."""
        if not self.padded and (self.mask_axes == 2 or self.device.type == "cuda"):
            return None
        mask = torch.arange(self.length + 1, device=self.device) >= self._pads
        return mask[:, None, None, :] if self.mask_axes == 4 else mask

    def _call(self, cache, ids: Tensor, positions: Tensor, mask: Tensor | None, logits_to_keep=1, **media) -> Tensor:
        """Logits (rows, kept tokens, V)."""
        return self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=logits_to_keep,
            **{self.cache_argument: cache},
            **media,
        ).logits


def layer_kinds(model) -> list[str]:
    """The kind of each layer of the language model, as its config names it; [] if all have full attention."""
    return list(getattr(model.config.get_text_config(), "layer_types", None) or [])


def unforkable(model) -> list[str]:
    """The kinds of the language model's layers whose cache cannot be forked."""
    return sorted(set(layer_kinds(model)) - FORKABLE)


def forking_cost(model) -> str | None:
    """What forks cost on top of the copied keys and values, for the start-up table; None if nothing."""
    kinds = layer_kinds(model)
    if unforkable(model):
        return (
            f"the cache of {', '.join(unforkable(model))} layers cannot be forked: every child of a fork is fed its "
            "prompt and its path again, and rows are decoded one by one"
        )
    if not RECURRENT.isdisjoint(kinds):
        count = sum(kind in RECURRENT for kind in kinds)
        return (
            f"forks copy the state of {count} of {len(kinds)} layers; a branch from a place where no row stopped is "
            "fed its path again"
        )
    return None


def cache_argument(model) -> str:
    # renamed by transformers within the supported versions
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _mask_axes(model) -> int:
    """Axes of the mask for one new token: 4 if the attention takes (R, 1, 1, L) unchanged, else 2.

    With a 4-D mask transformers need not build one at every step, and sdpa on a CPU is 1.7 times as fast for a single
    token with grouped heads (they are then folded into one call per key-value head).
    """
    config, kinds = model.config.get_text_config(), set(layer_kinds(model) or ["full_attention"])
    implementation = config._attn_implementation
    ready = implementation not in ("eager", "flex_attention") and "flash" not in implementation
    return 4 if ready and kinds == {"full_attention"} else 2
