"""Attention over a packed forest: each slot attends to its ancestors and itself, and to nothing else.

Slots are in depth-first order, so the subtree of slot k is the interval [k, subtree_end[k]), and one number per slot
describes the whole mask: query q attends to key k exactly when k <= q < subtree_end[k].

`tree_attention` is registered with Transformers under that name and accepts three kinds of mask:
- `subtree_end` as int64 (1, 1, 1, N): exact, on any device; time and memory grow with N * depth instead of N^2;
- a `BlockMask`: torch's flex_attention, compiled on a GPU (its CPU version has no backward pass);
- anything else: Transformers' own sdpa, so the model can keep this implementation for generation and evaluation.
"""

# N slots, H heads, D head size

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from task.errors import UserError

NAME = "tree_attention"
QUERY_BLOCK = 128  # measured on a CPU core: 64 to 256 perform alike, 512 spends a quarter more time on masked pairs


def interval_attention(query, key, value, subtree_end, scale=None, dropout=0.0) -> torch.Tensor:
    """Ancestor attention of query (1, H, N, D) on key, value (1, H / groups, N, D) -> (1, H, N, D).

    A block of queries [start, end) needs only the ancestors of slot `start` and its own slots, wherever the blocks are
    cut: an ancestor k < start of a later q in the block satisfies k < start <= q < subtree_end[k], so it is an ancestor
    of `start` too.
    """
    heads, slots, kv_heads = query.shape[1], query.shape[2], key.shape[1]
    groups = heads // kv_heads
    blocks = []
    for start in range(0, slots, QUERY_BLOCK):
        end = min(start + QUERY_BLOCK, slots)
        above = (subtree_end[:start] > start).nonzero().squeeze(1)
        own = torch.arange(start, end, device=subtree_end.device)
        seen = torch.cat([above, own])
        mask = (seen <= own[:, None]) & (own[:, None] < subtree_end[seen])
        keys, values = (torch.cat([x.index_select(2, above), x[:, :, start:end]], dim=2) for x in (key, value))
        # Heads that share keys are folded into more queries of one head, so keys are not copied per head.
        folded = query[:, :, start:end].reshape(1, kv_heads, groups * (end - start), -1)
        output = torch.nn.functional.scaled_dot_product_attention(
            folded, keys, values, attn_mask=mask.repeat(groups, 1)[None, None], dropout_p=dropout, scale=scale
        )
        blocks.append(output.reshape(1, heads, end - start, -1))
    return torch.cat(blocks, dim=2)


@functools.cache
def compiled_flex(backend: str | Callable = "inductor"):
    """flex_attention compiled for any number of slots: once with gradients and once without.

    With `fullgraph` torch raises where it would otherwise give up compiling and build the N x N scores.
    """
    return torch.compile(flex_attention, dynamic=True, fullgraph=True, backend=backend)


def tree_attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    """The function that Transformers calls in each attention layer; returns ((1, N, H, D), None)."""
    if isinstance(attention_mask, BlockMask):
        grouped = query.shape[1] != key.shape[1]
        attend = compiled_flex() if query.is_cuda else flex_attention
        output = attend(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=grouped)
    elif attention_mask is not None and attention_mask.dtype == torch.int64:
        output = interval_attention(query, key, value, attention_mask.flatten(), scaling, dropout)
    else:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    return output.transpose(1, 2).contiguous(), None


def language_attention(model: PreTrainedModel) -> str:
    """Name of the attention implementation of the language model (the vision tower has its own)."""
    return model.config.get_text_config()._attn_implementation


def attention_by_tower(model: PreTrainedModel) -> dict[str, str]:
    """Attention implementation of each tower: "language", and "vision" where the model has one."""
    vision = getattr(model.config, "vision_config", None)
    found = {"language": language_attention(model)}
    return found if vision is None else found | {"vision": vision._attn_implementation}


def check_packable(model: PreTrainedModel, sees_both_ways: bool = False) -> None:
    """Raises UserError, with the way out, if packed training would not be exact for this language model.

    `sees_both_ways`: whether the tokens of a picture attend to each other in both directions.
    """
    text = model.config.get_text_config()
    unusual = sorted(set(getattr(text, "layer_types", None) or []) - {"full_attention"})
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    if window and not getattr(text, "layer_types", None):
        unusual = [f"sliding_attention (sliding_window={window})"]
    found = [f"{', '.join(unusual)} layers"] if unusual else []
    found += ["pictures whose tokens see each other both ways"] if sees_both_ways else []
    found += ["attention with a soft cap"] if getattr(text, "attn_logit_softcapping", None) else []
    if found:
        raise UserError(
            f"the language model has {' and '.join(found)}, and packed training is exact for full attention only: "
            "train one row per leaf with --prefix_sharing off"
        )


def use_tree_attention(model: PreTrainedModel, sees_both_ways: bool = False) -> None:
    """Switches the language model to `tree_attention`, whatever it had; the vision tower keeps its own.

    Call it before making the optimizer. The switch is permanent, because gradient checkpointing looks the function up
    again during backward. Raises UserError if the model cannot be packed (`check_packable`).
    """
    check_packable(model, sees_both_ways)
    AttentionInterface.register(NAME, tree_attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    config, text = model.config, model.config.get_text_config()
    names = [name for name in config.sub_configs if getattr(config, name) is text]
    model.set_attn_implementation({names[0]: NAME} if names else NAME)
    assert language_attention(model) == NAME, language_attention(model)
