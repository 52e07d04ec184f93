"""The model's side of a batch: prefill, then one token a row, with explicit positions and a forking cache."""

# R live rows, B prompts, P padded prompt length, S tokens sampled below the prompt, V vocabulary

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.engines.kv_cache import ForkingCache

FORKABLE = {"full_attention", "sliding_attention"}


class BatchForward:
    """Runs the model over prompts that grow together, left-padded to one length.

    Positions are always given (for mrope three a token), so what a model remembers of its last call has no say.

    Args:
        model: the bare model.
        module: its VLMModule, for `batch_media`.
        prompts: EncodedPrompt each.
        pad_id: fills the left of the shorter prompts; any id that stands for no picture.
    """

    def __init__(self, model, module, prompts: list, pad_id: int):
        self.model, device = model, model.device
        self.media = {name: values.to(device) for name, values in module.batch_media(prompts).items()}
        length = max(len(prompt.ids) for prompt in prompts)
        pads = [length - len(prompt.ids) for prompt in prompts]
        rows = [[pad_id] * pad + prompt.ids for pad, prompt in zip(pads, prompts, strict=True)]
        self.ids = torch.tensor(rows, device=device)
        positions = [F.pad(prompt.position_ids, (pad, 0)) for pad, prompt in zip(pads, prompts, strict=True)]
        self.positions = torch.stack(positions, dim=-2).to(device)
        self.real = torch.arange(length, device=device) >= torch.tensor(pads, device=device)[:, None]
        self.padded = any(pads)
        self.next_position = torch.tensor([prompt.next_position for prompt in prompts], device=device)
        self.row_prompt = torch.arange(len(prompts), device=device)
        self.prompt_tokens = self.fed_tokens = sum(len(prompt.ids) for prompt in prompts)
        self.cache, self.cache_argument = ForkingCache(), _cache_argument(model)
        self.mask_axes = _mask_axes(model)

    def prefill(self) -> Tensor:
        """Logits (B, V) after each prompt. Pictures are encoded here and never again."""
        return self._call(self.ids, self.positions, self.real if self.padded else None, **self.media)

    def select(self, sources: list[int], row_prompt: list[int]) -> None:
        """Row i becomes what row sources[i] was; it belongs to prompt row_prompt[i]."""
        self.cache.select_rows(sources)
        self.row_prompt = torch.tensor(row_prompt, device=self.ids.device)

    def step(self, tokens: Tensor, depth: int) -> Tensor:
        """Feeds the token at `depth` below the prompt of every row, (R,) -> logits (R, V) after it."""
        self.fed_tokens += len(tokens)
        positions = (self.next_position[self.row_prompt] + depth)[:, None]
        if self.positions.dim() == 3:
            positions = positions.expand(3, -1, -1)
        return self._call(tokens[:, None], positions, self._mask(depth + 1))

    def history(self, path: Tensor) -> Tensor:
        """Ids (R, P + S) of each row from the prompt on; padding repeats the prompt's first token."""
        ids = torch.where(self.real, self.ids, self.ids.gather(1, (~self.real).sum(1, keepdim=True)))
        return torch.cat([ids[self.row_prompt], path], dim=1)

    def _mask(self, sampled: int) -> Tensor | None:
        """Which of the P + `sampled` slots a row's newest token sees: all but the padding."""
        if not self.padded and (self.mask_axes == 2 or self.ids.is_cuda):
            return None
        mask = F.pad(self.real[self.row_prompt], (0, sampled), value=True)
        return mask[:, None, None, :] if self.mask_axes == 4 else mask

    def _call(self, ids: Tensor, positions: Tensor, mask: Tensor | None, **media: Tensor) -> Tensor:
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: self.cache},
            **media,
        )
        return output.logits[:, -1]


def _cache_argument(model) -> str:
    # transformers renamed it within the versions we support
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _mask_axes(model) -> int:
    """Axes of the mask for one new token: 4 where the attention takes (R, 1, 1, L) as it is, else 2.

    A ready mask spares transformers the making of one at every step, and its presence makes sdpa on a CPU 1.7 times
    as fast for a single token with grouped heads (they are then folded into one call a key-value head).

    Raises ValueError for a model whose layers keep a state that is not keys and values.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds - FORKABLE:
        raise ValueError(
            f"{type(model).__name__} has layers of kind {', '.join(sorted(kinds - FORKABLE))}, whose state cannot be "
            f"forked: use a model whose layers are all {' or '.join(sorted(FORKABLE))}."
        )
    implementation = config._attn_implementation
    ready = implementation not in ("eager", "flex_attention") and "flash" not in implementation
    return 4 if ready and kinds == {"full_attention"} else 2
