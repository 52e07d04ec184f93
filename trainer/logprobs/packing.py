"""Packed rows: tokens and pictures that several rows of a micro-batch share are computed once.

The rows of one prompt form a trie whose edges are (parent slot, next token). A slot is an edge: its *input* is the
preceding token, its *label* the token itself. So siblings after a fork all repeat the parent's last token as their
input, and each slot has exactly one label. A prompt of P tokens gives P - 1 shared slots without a label; its last
token is the input of the first completion tokens. Only rows whose prompts agree in tokens and media are merged.

    rows [7 8 5] and [7 8 6] on the prompt [1 2 3]
    slot         0  1  2  3  4  5
    input        1  2  3  7  8  8
    label        -  -  7  8  5  6
    subtree_end  6  6  6  6  5  6     slot q attends to slot k if k <= q < subtree_end[k]

Slots are in depth-first order: rows are sorted, and a row adds slots for the tokens after its common prefix with the
preceding row.

With dropout (lora_dropout > 0) a shared slot draws one mask for all rows that share it; the dense layout draws one per
row.
"""

# R rows, T tokens of the longest completion, N slots, P prompt tokens

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.checkpoint import checkpoint

from task.errors import UserError
from trainer.logprobs.block_mask import tree_block_mask
from trainer.logprobs.tree_attention import NAME as TREE_ATTENTION
from trainer.logprobs.tree_attention import language_attention

if TYPE_CHECKING:
    from model.vlm_module import EncodedPrompt, VLMModule

IGNORED = -100


@dataclass(frozen=True)
class Plan:
    """One packed forward of some rows of a micro-batch.

    Args:
        input_ids: (1, N) long.
        shift_labels: (1, N) long, the token each slot predicts; -100 on slots inside a prompt.
        position_ids: (3, 1, N) long for models with three position axes, else (1, N).
        subtree_end: (N,) long, one past the last slot of each slot's subtree (the slot itself included).
        slot_of: (R, T) long, slot of each completion token of every row of the micro-batch; -1 on padding and on rows
            that belong to another plan of the micro-batch.
        prompts: the distinct prompts and observations with pictures, in the order of their slots; the media of each are
            passed once.
    """

    input_ids: torch.Tensor
    shift_labels: torch.Tensor
    position_ids: torch.Tensor
    subtree_end: torch.Tensor
    slot_of: torch.Tensor
    prompts: list[EncodedPrompt]

    @property
    def slots(self) -> int:
        return self.subtree_end.numel()

    def attention_mask(self) -> torch.Tensor:
        """(1, 1, N, N) bool, True where a query slot (row) attends to a key slot (column)."""
        slot = torch.arange(self.slots, device=self.subtree_end.device)
        return ((slot <= slot[:, None]) & (slot[:, None] < self.subtree_end))[None, None]

    @functools.cached_property
    def block_mask(self) -> BlockMask:
        """The same mask for flex_attention; built once, for the old, reference and policy passes."""
        return tree_block_mask(self.subtree_end)

    def padded(self, multiple: int) -> Plan:
        """The plan with slots behind its own that see only themselves, up to a multiple of `multiple`.

        So that flex_attention meets few lengths, each of whole blocks.
        """
        missing = -self.slots % multiple
        own = torch.arange(self.slots, self.slots + missing, device=self.subtree_end.device) + 1
        return dataclasses.replace(
            self,
            input_ids=F.pad(self.input_ids, (0, missing)),
            shift_labels=F.pad(self.shift_labels, (0, missing), value=IGNORED),
            position_ids=F.pad(self.position_ids, (0, missing)),
            subtree_end=torch.cat([self.subtree_end, own]),
        )

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Values per slot (1, N) -> values per completion token (R, T), 0 where `slot_of` is -1."""
        rows = values[0][self.slot_of.clamp(min=0)]
        return torch.where(self.slot_of >= 0, rows, torch.zeros((), dtype=rows.dtype, device=rows.device))


def build_plans(
    prompts: Sequence[EncodedPrompt],
    row_prompt: Sequence[int],
    completions: Sequence[Sequence[int]],
    max_slots: int | None = None,
    width: int | None = None,
    device: torch.device | str | None = None,
    observations: Sequence[Sequence[tuple[int, EncodedPrompt]]] | None = None,
) -> list[Plan]:
    """Plans of at most `max_slots` slots (None: a single plan) that together contain every row of the micro-batch once.

    Row r continues prompts[row_prompt[r]] with the token ids completions[r]. `width` is T of the (R, T) results, at
    least the longest completion (the default). Linear in the number of row tokens.

    Cuts fall between subtrees; the path from the prompt to a cut is recomputed after it, and the cuts minimise the
    total number of slots. Raises UserError if a single row needs more slots than `max_slots`.

    `observations`: of each row, its observations with pictures as (first completion token, observation); rows share an
    observation if both its tokens and its pictures agree.
    """
    assert len(row_prompt) == len(completions) > 0, (len(row_prompt), len(completions))
    rows = _sort_rows(prompts, row_prompt, completions, observations or [()] * len(completions))
    shape = (len(completions), max(rows.lengths.max(), width or 0))
    assert width is None or width >= rows.lengths.max(), (width, rows.lengths.max())
    cuts = _cheapest_cuts(rows, max_slots)
    return [_plan_of(rows, start, end, shape, device) for start, end in itertools.pairwise(cuts)]


def completion_offsets(observations: Sequence[tuple[int, EncodedPrompt]], width: int) -> np.ndarray:
    """Positions of a row's completion tokens relative to the prompt's `next_position`, (axes or 1, T = `width`).

    Text takes one position per token; an observation with pictures has its own positions and shifts what follows by its
    extent.
    """
    offsets = np.arange(width)[None]
    for at, seen in observations:
        own = seen.position_ids.reshape(-1, len(seen.ids)).numpy()
        offsets = np.repeat(offsets, len(own) // len(offsets), axis=0)
        start, end = offsets[:, at : at + 1].copy(), at + len(seen.ids)
        offsets[:, at:end] = start + own[:, : width - at]
        offsets[:, end:] = start + seen.next_position + np.arange(max(width - end, 0))
    return offsets


def packed_forward(
    model: torch.nn.Module, module: VLMModule, plans: Sequence[Plan], bare_model: torch.nn.Module | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability and entropy of every completion token, (R, T) each, in nats, 0 on padding.

    The model needs TRL's fused LM head (`add_fused_lm_head`), which applies the temperature; entropies are None if that
    head does not compute them. Best with `use_tree_attention(model)`; plain sdpa and eager get the full N x N mask.

    With several plans and gradients enabled, each forward is checkpointed, so that memory is that of the largest plan.
    `bare_model` is the model inside `model`'s DDP or DeepSpeed wrapper. It recomputes during backward, where a second
    call of the wrapper would restart its gradient reduction.
    """
    bare_model = bare_model or model
    outputs = []
    for plan in plans:
        if len(plans) > 1 and torch.is_grad_enabled():
            callees = itertools.chain([model], itertools.repeat(bare_model))
            run = functools.partial(_slot_values, callees, module, plan, bare_model)
            outputs.append(checkpoint(run, use_reentrant=False))
        else:
            outputs.append(_slot_values(iter([model]), module, plan, bare_model))
    log_probs = sum(plan.gather(values) for plan, (values, _) in zip(plans, outputs, strict=True))
    if outputs[0][1] is None:
        return log_probs, None
    return log_probs, sum(plan.gather(values) for plan, (_, values) in zip(plans, outputs, strict=True))


def _slot_values(callees, module, plan, bare_model):
    """Log-probs and entropies per slot from the fused head, (1, N) each; calls the next model of `callees`."""
    output = next(callees)(
        input_ids=plan.input_ids,
        attention_mask=_mask_for(language_attention(bare_model), plan, bare_model.dtype),
        position_ids=plan.position_ids,
        shift_labels=plan.shift_labels,
        fused_lm_head=True,
        use_cache=False,
        **module.batch_media(plan.prompts, plan.input_ids.device),
    )
    return output.log_probs, output.entropy


def _mask_for(attention: str, plan: Plan, dtype: torch.dtype) -> torch.Tensor | BlockMask:
    """The mask in the form that the language model's attention expects; transformers passes 4-D masks on unchanged."""
    if attention == TREE_ATTENTION:
        return plan.block_mask if plan.subtree_end.is_cuda else plan.subtree_end[None, None, None]
    if attention == "eager":
        return torch.where(plan.attention_mask(), 0.0, torch.finfo(dtype).min).to(dtype)
    return plan.attention_mask()


@dataclass(frozen=True)
class _SortedRows:
    """Rows sorted by prompt, then lexicographically by completion, so that rows with common prefixes are neighbours."""

    order: np.ndarray  # (R,) index of each sorted row in the micro-batch
    tokens: np.ndarray  # (R, T) completions, -1 on padding
    lengths: np.ndarray  # (R,)
    shared: np.ndarray  # (R,) length of the common prefix with the preceding row, 0 at a new prompt
    prompt_of: np.ndarray  # (R,) index into `prompts`
    prompts: list[EncodedPrompt]
    offsets: np.ndarray  # (axes or 1, R, T) positions of the completion tokens relative to the prompt's end
    observations: list[Sequence[tuple[int, EncodedPrompt]]]  # (R,) those with pictures: first token, observation

    def prompt_slots(self) -> np.ndarray:
        """(R,) number of slots inside each row's prompt."""
        return np.array([len(prompt.ids) - 1 for prompt in self.prompts])[self.prompt_of]


def _sort_rows(prompts, row_prompt, completions, observations) -> _SortedRows:
    place_of_key, place_of_prompt = {}, {}
    for i in dict.fromkeys(row_prompt):
        assert len(prompts[i].ids) == prompts[i].position_ids.shape[-1] > 0, prompts[i].position_ids.shape
        key = (tuple(prompts[i].ids), prompts[i].media_key)
        place_of_prompt[i] = place_of_key.setdefault(key, (len(place_of_key), prompts[i]))[0]
    prompt_of = np.array([place_of_prompt[i] for i in row_prompt])

    lengths = np.array([len(row) for row in completions])
    tokens = np.full((len(completions), max(lengths.max(), 1)), -1, dtype=np.int64)
    inside = np.arange(tokens.shape[1]) < lengths[:, None]
    tokens[inside] = np.fromiter(itertools.chain.from_iterable(completions), np.int64, lengths.sum())
    names = _names(tokens, observations)

    sortable = (names + 1).astype(">u4")  # big-endian bytes sort like the numbers, padding first
    order = np.array(sorted(range(len(completions)), key=lambda r: (prompt_of[r], sortable[r].tobytes())))
    tokens, names, lengths, prompt_of = tokens[order], names[order], lengths[order], prompt_of[order]
    observations = [observations[r] for r in order]

    same = names[1:] == names[:-1]
    common = np.where(same.all(axis=1), tokens.shape[1], same.argmin(axis=1))
    common = np.minimum(common, np.minimum(lengths[1:], lengths[:-1]))
    shared = np.concatenate([[0], np.where(prompt_of[1:] == prompt_of[:-1], common, 0)])
    distinct = [prompt for _, prompt in place_of_key.values()]
    if any(observations):
        rows = [completion_offsets(found, tokens.shape[1]) for found in observations]
        offsets = np.stack(np.broadcast_arrays(*rows), axis=1)
    else:
        offsets = np.arange(tokens.shape[1])[None, None]
    return _SortedRows(order, tokens, lengths, shared, prompt_of, distinct, offsets, observations)


def _names(tokens: np.ndarray, observations) -> np.ndarray:
    """The tokens, with a unique id as the first token of each observation with pictures: placeholders are all alike."""
    if not any(observations):
        return tokens
    names, known = tokens.copy(), {}
    for row, found in enumerate(observations):
        for at, seen in found:
            names[row, at] = 2**31 + known.setdefault((seen.media_key, tuple(seen.ids)), len(known))
    return names


def _cheapest_cuts(rows: _SortedRows, max_slots: int | None) -> list[int]:
    """Boundaries 0 = c0 < c1 < ... = R of runs of sorted rows within `max_slots`, with the fewest slots in total."""
    count = len(rows.lengths)
    path = rows.prompt_slots() + rows.lengths  # a run begins with the whole path of its first row
    added = np.cumsum(np.where(np.diff(rows.prompt_of, prepend=-1) > 0, path, rows.lengths - rows.shared))
    if max_slots is None or added[-1] <= max_slots:
        return [0, count]
    if path.max() > max_slots:
        row = int(path.argmax())
        raise UserError(
            f"row {rows.order[row]} needs {path[row]} slots (prompt {rows.prompt_slots()[row] + 1}, completion "
            f"{rows.lengths[row]} tokens), but max_slots is {max_slots}: set max_slots to at least the longest prompt "
            "plus completion, or make these shorter"
        )
    best, cut = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        slots = path[:end] + added[end - 1] - added[:end]
        # Fewest slots; among equals, fewest runs.
        cost = np.where(slots <= max_slots, best[:end] + slots * (count + 1) + 1, np.iinfo(np.int64).max)
        cut[end] = cost.argmin()
        best[end] = cost[cut[end]]
    cuts = [count]
    while cuts[-1] > 0:
        cuts.append(int(cut[cuts[-1]]))
    return cuts[::-1]


def _plan_of(rows: _SortedRows, start: int, end: int, shape: tuple[int, int], device) -> Plan:
    """The plan of the sorted rows [start, end)."""
    lengths, tokens, prompt_of = rows.lengths[start:end], rows.tokens[start:end], rows.prompt_of[start:end]
    first = np.diff(prompt_of, prepend=-1) > 0
    shared = np.where(first, 0, rows.shared[start:end])
    prompt_slots = rows.prompt_slots()[start:end]
    own_prompt = np.where(first, prompt_slots, 0)
    # First slot of each row (of its prompt, for the first row of a prompt); then N.
    starts = np.concatenate([[0], np.cumsum(own_prompt + lengths - shared)])
    offset = starts[:-1] + own_prompt - shared  # a token at depth d that the row owns has slot offset + d

    count, depth = end - start, np.arange(tokens.shape[1])
    place, begins, inside = np.arange(count)[:, None], depth >= shared[:, None], depth < lengths[:, None]
    owner = np.maximum.accumulate(np.where(begins, place, 0), axis=0)
    slot = np.where(inside, offset[owner] + depth, -1)
    # `parting`: the next row that does not share the token at that depth, where the token's subtree ends.
    parting = np.minimum.accumulate(np.where(begins, place, count)[::-1], axis=0)[::-1]
    parting = np.concatenate([parting[1:], np.full_like(parting[:1], count)])

    used = [rows.prompts[i] for i in prompt_of[first]]
    with_media = []
    for i in range(count):
        with_media += [rows.prompts[prompt_of[i]]] if first[i] else []
        with_media += [seen for at, seen in rows.observations[start + i] if at >= shared[i]]
    axes = [prompt.position_ids.reshape(-1, len(prompt.ids)).cpu().numpy() for prompt in used]
    slots = int(starts[-1])
    row, at = np.nonzero(begins & inside)  # of each completion slot, in slot order: its row and depth
    inputs, subtree_end = np.empty(slots, np.int64), np.empty(slots, np.int64)
    labels = np.full(slots, IGNORED, np.int64)
    positions = np.empty((len(axes[0]), slots), np.int64)
    blocks = np.append(np.flatnonzero(first), count)
    for i, prompt in enumerate(used):
        here = slice(starts[blocks[i]], starts[blocks[i]] + len(prompt.ids) - 1)
        inputs[here], positions[:, here], subtree_end[here] = prompt.ids[:-1], axes[i][:, :-1], starts[blocks[i + 1]]

    here, of = offset[row] + at, np.cumsum(first)[row] - 1
    last_token, last_position = np.array([p.ids[-1] for p in used]), np.stack([x[:, -1] for x in axes], axis=1)
    inputs[here] = np.where(at == 0, last_token[of], tokens[row, at - 1])
    offsets = np.broadcast_to(rows.offsets, (len(axes[0]), len(rows.lengths), tokens.shape[1]))[:, start:end]
    after = np.array([p.next_position for p in used])[of] + offsets[:, row, at - 1]
    positions[:, here] = np.where(at == 0, last_position[:, of], after)
    labels[here], subtree_end[here] = tokens[row, at], starts[parting[row, at]]

    slot_of = np.full(shape, -1, np.int64)
    slot_of[rows.order[start:end], : slot.shape[1]] = slot[:, : shape[1]]
    inputs, labels, positions, subtree_end, slot_of = (
        torch.from_numpy(x).to(device) for x in (inputs[None], labels[None], positions, subtree_end, slot_of)
    )
    positions = positions[:, None] if len(positions) > 1 else positions
    return Plan(inputs, labels, positions, subtree_end, slot_of, with_media)
