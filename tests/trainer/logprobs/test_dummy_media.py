"""A pass without pictures gets one that no row reads: same values, gradients of exactly zero in the vision tower."""

import copy

import pytest
import torch
from trainer_cases import demo_rows, thought_tree
from trl.trainer.utils import add_fused_lm_head

from dataset.dataset_grpo import load_media, read_row
from trainer.logprobs.dummy_media import KINDS, rollout_media_kinds
from trainer.logprobs.forward import RowForward
from trainer.rollout import Rollout


@pytest.fixture
def case(tiny_vlm):
    """(module, model that answers the fused head, rollout of one text prompt, its ids and mask)."""
    module, model, _ = tiny_vlm
    model = copy.deepcopy(model)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    prompt = module.encode([{"role": "user", "content": "Hi."}], [], [])
    rollout = Rollout.from_trees(
        [prompt], [thought_tree("a", [[400, 401], [402]], [[[403], [404, 405]], [[406], [407]]])], 4
    )
    ids = torch.zeros(4, len(prompt.ids) + 4, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row in range(4):
        tokens = [*prompt.ids, *rollout.completion(row)]
        ids[row, : len(tokens)], mask[row, : len(tokens)] = torch.tensor(tokens), 1
    return module, model, rollout, ids, mask


def run(case, sharing: str, others_have_media: bool):
    module, model, rollout, ids, mask = case
    forward = RowForward(module, model, sharing, None, largest=lambda count: int(others_have_media), processes=2)
    forward.start(rollout)
    model.zero_grad(set_to_none=True)
    logps, entropies = forward(model, model, [0, 1, 2, 3], ids, mask, 4)
    (logps.sum() + entropies.sum()).backward()
    vision = [weight.grad for name, weight in model.named_parameters() if "visual." in name]
    language = {name: weight.grad for name, weight in model.named_parameters() if "visual." not in name}
    return logps.detach(), entropies.detach(), vision, language


@pytest.mark.parametrize("sharing", ["on", "off"])
def test_nothing_changes_but_that_the_vision_tower_ran(case, sharing):
    logps, entropies, vision, language = run(case, sharing, others_have_media=False)
    assert all(gradient is None for gradient in vision)
    with_dummies = run(case, sharing, others_have_media=True)
    assert torch.allclose(with_dummies[0], logps, atol=1e-5) and with_dummies[0].shape == logps.shape == (4, 4)
    assert torch.allclose(with_dummies[1], entropies, atol=1e-5)
    assert all(gradient is not None and not gradient.any() for gradient in with_dummies[2])
    for name, gradient in language.items():
        assert torch.allclose(with_dummies[3][name], gradient, atol=1e-4), name


def test_media_are_added_only_where_they_lack(tiny_vlm):
    module, model, _ = tiny_vlm
    record = read_row(demo_rows(1)[0])
    prompt = module.encode(record["messages"], *load_media(record))
    rollout = Rollout.from_trees([prompt], [thought_tree("a", [[400]], [[[403], [404]]])], 2)
    assert rollout_media_kinds(rollout) == [True, False]
    forward = RowForward(module, model, "on", None, processes=2)  # no process has a video
    forward.start(rollout)
    assert forward._dummies.keys() == {KINDS[0]}
    assert len(forward._plan((0, 1), 2, "cpu")[0].prompts) == 1


def test_one_process_has_nobody_to_keep_in_step_with(case):
    module, model, rollout, *_ = case
    forward = RowForward(module, model, "on", None, largest=lambda count: 1)
    forward.start(rollout)
    assert forward._dummies == {}
