"""The start-up check of packed against dense: rounding passes, and a fault of the packed layout does not."""

import copy
import dataclasses
import math

import pytest
import torch
from packing_cases import mixed_case, tiny_vlm

from trainer.logprobs.layout_gap import MEAN, TAIL, LayoutGap
from trainer.logprobs.packing import build_plans, packed_forward


def test_a_gap_is_mean_tail_and_maximum():
    gap = LayoutGap.of(torch.cat([torch.zeros(1998), torch.tensor([-0.5, 0.25])]))
    assert (gap.mean, gap.tail, gap.maximum) == (pytest.approx(0.75 / 2000), 0.25, 0.5)


def test_in_low_precision_single_tokens_may_be_off_by_rounding():
    """A few of thousands of tokens by a step of the logits and more."""
    torch.manual_seed(0)
    gaps = torch.randn(8000) * 0.01
    gaps[:4] = torch.tensor([0.6, -0.5, 0.75, 0.51])
    assert LayoutGap.of(gaps).fault(exact=False) is None
    assert LayoutGap.of(gaps).fault(exact=True) == "bound of the maximum: 0.001"


@pytest.mark.parametrize("exact", [True, False])
def test_nan_passes_no_bound(exact):
    assert LayoutGap(math.nan, math.nan, math.nan).fault(exact)
    assert LayoutGap.of(torch.tensor([0.0, math.nan])).fault(exact)


def test_both_bounds_of_low_precision_count():
    assert LayoutGap(mean=2 * MEAN, tail=0.0, maximum=0.0).fault(exact=False).startswith("bound of the mean")
    assert LayoutGap(mean=0.0, tail=2 * TAIL, maximum=2 * TAIL).fault(exact=False).startswith("bound of the 99.9th")


class TestInjectedFaults:
    """A packed pass in bfloat16 against the dense one in bfloat16, of text, pictures and a video."""

    def gap(self, change=lambda plan: plan) -> LayoutGap:
        module, model = tiny_vlm()
        model = copy.deepcopy(model).to(torch.bfloat16)
        prompts, row_prompt, completions = mixed_case()
        with torch.no_grad():
            (plan,) = build_plans(prompts, row_prompt, completions)
            packed, _ = packed_forward(model, module, [change(plan)])
            rows = [
                packed_forward(model, module, build_plans(prompts, [p], [row], width=packed.shape[1]))[0]
                for p, row in zip(row_prompt, completions, strict=True)
            ]
        mask = torch.zeros_like(packed, dtype=torch.bool)
        for row, completion in enumerate(completions):
            mask[row, : len(completion)] = True
        return LayoutGap.of((packed - torch.cat(rows))[mask])

    def test_rounding_passes(self):
        gap = self.gap()
        assert gap.maximum > 0
        assert gap.fault(exact=False) is None

    def test_a_wrong_position_is_caught(self):
        def later(plan):
            positions = plan.position_ids + (plan.shift_labels >= 0) * 3
            return dataclasses.replace(plan, position_ids=positions)

        assert self.gap(later).fault(exact=False)

    def test_a_lost_picture_is_caught(self):
        def blind(plan):
            blank = [
                dataclasses.replace(p, media={k: v * 0 if v.is_floating_point() else v for k, v in p.media.items()})
                for p in plan.prompts
            ]
            return dataclasses.replace(plan, prompts=blank)

        assert self.gap(blind).fault(exact=False)

    def test_a_leaked_sibling_is_caught(self):
        def leak(plan):
            ends = torch.where(plan.shift_labels[0] >= 0, plan.slots, plan.subtree_end)  # answers see what follows
            return dataclasses.replace(plan, subtree_end=ends)

        assert self.gap(leak).fault(exact=False)


def test_slots_behind_a_plan_change_nothing():
    module, model = tiny_vlm()
    (plan,) = build_plans(*mixed_case())
    longer = plan.padded(128)
    assert longer.slots % 128 == 0
    assert longer.slots > plan.slots
    with torch.no_grad():
        for got, wanted in zip(
            packed_forward(model, module, [longer]), packed_forward(model, module, [plan]), strict=True
        ):
            assert (got - wanted).abs().max() <= 1e-6
