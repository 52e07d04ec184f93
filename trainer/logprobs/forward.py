"""Log-probabilities of completion tokens: packed (shared tokens once) or dense (one row per leaf, the reference)."""

# B rows, P longest prompt, T longest completion

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch

from model.vlm_module import EncodedPrompt, VLMModule
from task.errors import UserError
from trainer.logprobs.block_mask import BLOCK
from trainer.logprobs.dummy_media import (
    KINDS,
    add_dummy_row,
    add_dummy_to_plan,
    dummy_prompt,
    missing_dummies,
    rollout_media_kinds,
)
from trainer.logprobs.layout_gap import LayoutGap
from trainer.logprobs.packing import Plan, build_plans, completion_offsets, packed_forward
from trainer.logprobs.tree_attention import use_tree_attention
from trainer.rollout import Rollout


class RowForward:
    """Log-probs and entropies of rows of the current rollout, in one layout for policy, old and reference passes.

    Args:
        module: the model family.
        model: the bare policy, put on tree attention when prefixes are shared.
        prefix_sharing: "on", "off", or "auto": on unless the model has layers for which packing is not exact.
        max_slots: largest number of slots of a packed forward; larger batches are cut between subtrees, and each part
            is checkpointed.
        largest: returns the maximum of a number over all processes. If rows are cut, every process makes the same
            number of forward passes, since DDP and ZeRO communicate in each and would hang otherwise.
        processes: number of processes; with several, all have the same kinds of media in every pass (`dummy_media`).

    Raises:
        UserError: "on" with a model for which packing is not exact.
    """

    def __init__(
        self,
        module: VLMModule,
        model,
        prefix_sharing: str,
        max_slots: int | None,
        largest: Callable[[int], int] = lambda count: count,
        processes: int = 1,
    ):
        self.module, self.max_slots, self.largest, self.processes = module, max_slots, largest, processes
        self.sharing = prefix_sharing != "off"
        self.unshared = None if self.sharing else "prefix_sharing is off"
        if self.sharing:
            try:
                use_tree_attention(model, module.sees_both_ways)
            except UserError as error:
                if prefix_sharing == "on":
                    raise
                warnings.warn(f"prefixes are not shared, every leaf recomputes its whole row: {error}", stacklevel=3)
                self.sharing, self.unshared = False, str(error)
        self.checked = False
        self._rollout: Rollout | None = None
        self._dummies: dict[str, EncodedPrompt] = {}
        self._plans: dict[tuple[int, ...], list[Plan]] = {}

    def start(self, rollout: Rollout) -> None:
        """Starts a new rollout and drops the plans of the old one.

        Raises UserError, naming the record, if a completion contains a media placeholder. The engine never samples
        one; without this check the model would fail with a count that names no record.
        """
        for index, tree in enumerate(rollout.trees):
            prompt = rollout.prompts[index]
            sampled = (token for node in tree.nodes if node.media is None for token in node.token_ids)
            name = f"record {tree.prompt_id!r} with its completions"
            self.module.check_media([*prompt.ids, *sampled], prompt.media, name)
        self._rollout, self._plans, self._dummies = rollout, {}, {}
        if self.processes > 1:
            present = zip(KINDS, rollout_media_kinds(rollout), strict=True)
            anywhere = [kind for kind, here in present if self.largest(int(here))]
            self._dummies = {kind: dummy_prompt(self.module, kind) for kind in anywhere}

    def __call__(self, model, bare_model, rows: list[int], input_ids, attention_mask, width: int):
        """(B, T) log-probs and entropies of the given rows. `input_ids`, `attention_mask`: (B, P+T), T = `width`."""
        if not self.sharing:
            return self.dense(model, rows, input_ids, attention_mask, width)
        return packed_forward(model, self.module, self._plan(tuple(rows), width, input_ids.device), bare_model)

    def dense(self, model, rows: list[int], input_ids, attention_mask, width: int):
        """The same with one row per leaf."""
        prompts = [self._rollout.prompts[self._rollout.row_tree[row]] for row in rows]
        observations = [self._rollout.observations(row) for row in rows]
        dummies = missing_dummies([*prompts, *(seen for found in observations for _, seen in found)], self._dummies)
        for prompt in dummies:
            input_ids, attention_mask = add_dummy_row(prompt, input_ids, attention_mask, width)
        prompts, observations = [*prompts, *dummies], [*observations, *[()] * len(dummies)]
        logps, entropies = dense_forward(model, self.module, prompts, input_ids, attention_mask, width, observations)
        return logps[: len(rows)], None if entropies is None else entropies[: len(rows)]

    def check_once(self, model, *arguments, shown: bool) -> None:
        """Runs `check` on the first rows, and prints the result if `shown`; later calls do nothing.

        Dropout is disabled: it would make the layouts differ, and it would draw random numbers that a resumed run draws
        again.
        """
        if self.checked or not self.sharing:
            return
        self.checked, training = True, model.training
        model.eval()
        gap = self.check(model, *arguments)
        model.train(training)
        if shown:
            print(f"prefix sharing: packed and dense log-probs differ by {gap}", flush=True)

    def check(self, model, rows: list[int], input_ids, attention_mask, width: int) -> LayoutGap:
        """How far the packed log-probs of the rows are from the dense ones, for a model without dropout.

        RuntimeError where that is more than rounding.
        """
        with torch.no_grad():
            packed, _ = self(model, model, rows, input_ids, attention_mask, width)
            dense, _ = self.dense(model, rows, input_ids, attention_mask, width)
        gap = LayoutGap.of((packed - dense)[attention_mask[:, -width:].bool()])
        rounded = torch.is_autocast_enabled(packed.device.type) or torch.float32 not in (packed.dtype, model.dtype)
        rounded = rounded or getattr(model, "is_loaded_in_8bit", False)  # activations have 8 bits too
        fault = gap.fault(exact=not rounded and packed.dtype == model.dtype)
        if fault:
            raise RuntimeError(
                f"packed and dense log-probs differ by {gap} ({fault}): prefix sharing is not exact for this model; "
                "train with --prefix_sharing off and please report the model"
            )
        return gap

    def slots(self, rows: list[int]) -> int:
        """Token slots of the pass over these rows (of its largest part, if they are cut)."""
        if tuple(rows) in self._plans:
            return max(plan.slots for plan in self._plans[tuple(rows)])
        lengths = [len(self._rollout.prompts[self._rollout.row_tree[r]].ids) for r in rows]
        return sum(lengths) + sum(len(self._rollout.completion(row)) for row in rows)

    def _plan(self, rows: tuple[int, ...], width: int, device) -> list[Plan]:
        if rows not in self._plans:
            trees = sorted({self._rollout.row_tree[row] for row in rows})
            plans = build_plans(
                [self._rollout.prompts[tree] for tree in trees],
                [trees.index(self._rollout.row_tree[row]) for row in rows],
                [self._rollout.completion(row) for row in rows],
                self.max_slots,
                width,
                device,
                [self._rollout.observations(row) for row in rows],
            )
            dummies = [missing_dummies(plan.prompts, self._dummies) for plan in plans]
            plans = [functools.reduce(add_dummy_to_plan, *pair) for pair in zip(dummies, plans, strict=True)]
            if torch.device(device).type == "cuda":  # for flex_attention
                plans = [plan.padded(BLOCK) for plan in plans]
            if self.max_slots is not None:
                plans += [_dummy_plan(plans)] * (self.largest(len(plans)) - len(plans))
            self._plans[rows] = plans
        return self._plans[rows]


def _dummy_plan(plans: list[Plan]) -> Plan:
    """The smallest plan again, without rows: a forward pass that changes neither values nor gradients."""
    smallest = min(plans, key=lambda plan: plan.slots)
    return dataclasses.replace(smallest, slot_of=torch.full_like(smallest.slot_of, -1))


def dense_forward(
    model: torch.nn.Module,
    module: VLMModule,
    prompts: list[EncodedPrompt],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    logits_to_keep: int,
    observations: Sequence[Sequence[tuple[int, EncodedPrompt]]] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One forward of B full rows through TRL's fused LM head.

    Args:
        model: the policy or reference, wrapped or not, with TRL's `add_fused_lm_head` installed.
        prompts: (B,) the encoded prompt of each row; its media are passed once per row, as in TRL's own layout.
        input_ids, attention_mask: (B, P+T), prompts padded on the left, completions on the right.
        logits_to_keep: T.
        observations: (B,) the observations with pictures of each row: (first completion token, observation).

    Returns:
        log-probabilities and entropies (nats) at the temperature of the fused head, both (B, T); 0 where masked. The
        entropies are None if that head does not compute them (as in a reference model).

    Positions are passed explicitly, so nothing depends on state that the model keeps from its last generation.
    """
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    labels[:, :-logits_to_keep] = -100
    observations = observations or [()] * len(prompts)
    offsets = [completion_offsets(found, logits_to_keep) for found in observations]
    pairs = zip(prompts, observations, strict=True)
    with_media = [item for prompt, found in pairs for item in (prompt, *(seen for _, seen in found))]
    outputs = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=row_positions(prompts, input_ids.size(1), offsets).to(input_ids.device),
        labels=labels,
        fused_lm_head=True,
        **module.batch_media(with_media, input_ids.device),
        **module.token_types(input_ids),
    )
    entropy = outputs.entropy
    return outputs.log_probs[:, -logits_to_keep:], None if entropy is None else entropy[:, -logits_to_keep:]


def row_positions(prompts: list[EncodedPrompt], width: int, offsets: Sequence[np.ndarray]) -> torch.Tensor:
    """Position ids of left-padded rows: (B, width) for text models, (3, B, width) for models with mrope axes.

    `offsets`: the completion offsets of each row, see `completion_offsets`.
    """
    rows = []
    for prompt, offset in zip(prompts, offsets, strict=True):
        positions = prompt.position_ids
        after = prompt.next_position + torch.from_numpy(offset).reshape(-1, offset.shape[-1])
        after = after.expand(*positions.shape[:-1], -1) if positions.dim() == 2 else after[0]
        pad = width - positions.size(-1) - after.size(-1)
        rows.append(torch.cat([positions.new_zeros(*positions.shape[:-1], pad), positions, after], dim=-1))
    return torch.stack(rows, dim=-2)
