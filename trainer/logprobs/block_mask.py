"""The mask of a packed forest in the form that torch's flex_attention takes, made from `subtree_end` alone."""

# N slots, Q blocks of BLOCK slots

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # slots; flex_attention's default


def tree_block_mask(subtree_end: Tensor) -> BlockMask:
    """Which blocks of keys a block of queries sees, where slot q sees slot k when k <= q < subtree_end[k].

    Equal to torch's `create_block_mask` of that rule, which builds the N x N matrix first; this takes memory for Q x Q
    flags. Key block K before query block Q is needed if one of its subtrees reaches into Q, and full if all of them
    reach past its end; a block sees itself in part.

    Args:
        subtree_end: (N,) long, one past the last slot below each slot, itself included.
    """
    count = -(-subtree_end.numel() // BLOCK)
    missing = count * BLOCK - subtree_end.numel()
    # Keys that do not exist reach nowhere, and forbid no block to be full.
    largest = F.pad(subtree_end, (0, missing), value=0).view(count, BLOCK).amax(dim=1)
    smallest = F.pad(subtree_end, (0, missing), value=count * BLOCK).view(count, BLOCK).amin(dim=1)
    block = torch.arange(count, device=subtree_end.device)
    before, starts = block[:, None] > block, block[:, None] * BLOCK
    full = before & (smallest >= starts + BLOCK)
    partial = (before & (largest > starts) & ~full) | (block[:, None] == block)

    def sees(batch, head, query, key):
        return (key <= query) & (query < subtree_end[key])

    size = (subtree_end.numel(),) * 2
    return BlockMask.from_kv_blocks(*_listed(partial), *_listed(full), BLOCK, sees, seq_lengths=size)


def _listed(flags: Tensor) -> tuple[Tensor, Tensor]:
    """(1, 1, Q) how many key blocks each query block has, and (1, 1, Q, Q) their indices, those it has first."""
    order = flags.int().argsort(dim=1, descending=True, stable=True)
    return flags.sum(dim=1, dtype=torch.int32)[None, None], order.int()[None, None]
