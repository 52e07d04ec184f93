"""Dummy media keep processes in step when some have pictures in a forward pass and others have none.

DDP, ZeRO and FSDP communicate as modules run. If one process runs the vision tower and another does not, both hang, or
gradients of different weights are summed. So if a kind of media occurs anywhere in a generation, every forward pass of
every process contains that kind: a pass without it gets a tiny dummy, whose tokens no row attends to. This changes no
value, and the gradient of the dummy is exactly zero. A frozen tower needs none: media whose features are given
(`EncodedPrompt.features`) do not run it in any pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from PIL import Image

from model.vlm_module import EncodedPrompt, VLMModule
from trainer.logprobs.packing import IGNORED, Plan
from trainer.rollout import Rollout

KINDS = ("pixel_values", "pixel_values_videos")
SIDE = 56  # pixels


def media_kinds(items: Iterable[EncodedPrompt]) -> list[bool]:
    """For each of `KINDS`, whether it occurs among the media of prompts and observations that need the tower."""
    found = {key for item in items if item.features is None for key in item.media}
    return [kind in found for kind in KINDS]


def rollout_media_kinds(rollout: Rollout) -> list[bool]:
    """The same for all prompts and observations of a generation."""
    seen = [node.media for tree in rollout.trees for node in tree.nodes if node.media is not None]
    return media_kinds([*rollout.prompts, *seen])


def missing_dummies(items: Iterable[EncodedPrompt], dummies: dict[str, EncodedPrompt]) -> list[EncodedPrompt]:
    """The prompts of `dummies` (kind -> prompt) for the kinds that do not occur among the `items` of a pass."""
    present = dict(zip(KINDS, media_kinds(items), strict=True))
    return [dummies[kind] for kind in KINDS if kind in dummies and not present[kind]]


def add_dummy_to_plan(plan: Plan, prompt: EncodedPrompt) -> Plan:
    """The plan with a prompt appended that no row continues."""
    device, count = plan.subtree_end.device, len(prompt.ids)
    positions = prompt.position_ids.to(device)
    positions = positions[:, None] if positions.dim() == 2 else positions[None]
    return dataclasses.replace(
        plan,
        input_ids=torch.cat([plan.input_ids, torch.tensor([prompt.ids], device=device)], dim=-1),
        shift_labels=F.pad(plan.shift_labels, (0, count), value=IGNORED),
        position_ids=torch.cat([plan.position_ids, positions], dim=-1),
        subtree_end=F.pad(plan.subtree_end, (0, count), value=plan.slots + count),
        prompts=[*plan.prompts, prompt],
    )


def add_dummy_row(prompt: EncodedPrompt, input_ids, attention_mask, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(B+1, P+T) input ids and attention mask with an added row: the prompt, and padding for the T = `width` tokens.

    If the prompt is longer than P, the other rows are padded on the left.
    """
    more = max(len(prompt.ids) + width - input_ids.size(1), 0)
    rows = []
    for old, new in ((input_ids, torch.tensor([prompt.ids])), (attention_mask, torch.ones(1, len(prompt.ids)))):
        new = F.pad(new.to(old), (old.size(1) + more - width - len(prompt.ids), width))
        rows.append(torch.cat([F.pad(old, (more, 0)), new]))
    return rows[0], rows[1]


def dummy_prompt(module: VLMModule, kind: str) -> EncodedPrompt:
    """A user turn with only a small picture, or a video of two small frames."""
    picture = Image.new("RGB", (SIDE, SIDE))
    part, *media = ("image", [picture], []) if kind == "pixel_values" else ("video", [], [[picture, picture]])
    return module.encode([{"role": "user", "content": [{"type": part, "index": 0}]}], *media)
