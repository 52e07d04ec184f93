"""Pictures inside completions: an observation's picture is computed once, where the model's own rule puts it."""

import dataclasses

import numpy as np
import pytest
import torch
from packing_cases import (
    PICTURE,
    WIDE,
    assert_same_gradients,
    dense,
    gradients,
    text_prompt,
    tiny_vlm,
    vlm_prompt,
)
from PIL import Image

from trainer.logprobs.forward import dense_forward
from trainer.logprobs.packing import build_plans, completion_offsets, packed_forward
from trainer.rollout import Rollout
from trainer.tree import PROMPT, Node, Tree


def rollout(prompt_parts):
    """Two chains that saw different pictures under the same tokens, one of them forked below its picture."""
    prompt = vlm_prompt(prompt_parts)
    first, second = vlm_prompt([21, PICTURE, 22], seed=5), vlm_prompt([21, PICTURE, 22], seed=6)
    wide = vlm_prompt([23, WIDE, 24], seed=7)
    assert first.ids == second.ids and first.media_key != second.media_key
    tree = Tree("a")
    for seen in (first, second):
        step = tree.add(Node(PROMPT, "step", [5, 6]))
        below = tree.add(Node(step, "observation", seen.ids, sampled=False, media=seen))
        tree.add(Node(below, "step", [7, 8]))
        again = tree.add(Node(below, "step", [7, 9]))
        tree.add(Node(again, "observation", wide.ids, sampled=False, media=wide))
        tree.add(Node(len(tree.nodes) - 1, "step", [10]))
    return Rollout.from_trees([prompt], [tree], 4), (first, second, wide)


def case_of(found):
    rows = range(len(found.row_tree))
    return found.prompts, found.row_tree, [found.completion(row) for row in rows], [found.observations(r) for r in rows]


def reference(model, found):
    """Each row alone with ordinary logits; the model places its pictures itself."""
    module, _ = tiny_vlm()
    prompts, row_tree, completions, observations = case_of(found)
    whole = []
    for tree, seen in zip(row_tree, observations, strict=True):
        media = module.batch_media([prompts[tree], *(item for _, item in seen)])
        whole.append(dataclasses.replace(prompts[tree], media=media))
    return dense(model, whole, range(len(whole)), completions)


@pytest.mark.parametrize("parts", [[1, 2, 3], [1, WIDE, 2]], ids=["text", "picture"])
@pytest.mark.parametrize("max_slots", [None, 40])
def test_packed_equals_rows_alone_in_values_and_gradients(parts, max_slots):
    module, model = tiny_vlm()
    found, _ = rollout(parts)
    wanted = reference(model, found)
    wanted_gradients = gradients(model, *wanted)
    prompts, row_tree, completions, observations = case_of(found)
    plans = build_plans(prompts, row_tree, completions, max_slots=max_slots, observations=observations)
    assert len(plans) > 1 or max_slots is None
    got = packed_forward(model, module, plans)
    for one, other in zip(got, wanted, strict=True):
        assert (one - other).abs().max() <= 5e-6
    assert_same_gradients(gradients(model, *got), wanted_gradients)


def test_a_shared_picture_goes_in_once_and_different_ones_do_not_merge():
    found, (first, second, wide) = rollout([1, WIDE, 2])
    prompts, row_tree, completions, observations = case_of(found)
    (plan,) = build_plans(prompts, row_tree, completions, observations=observations)
    in_order = [found.prompts[0].media_key, first.media_key, wide.media_key, second.media_key, wide.media_key]
    other_order = [in_order[0], *in_order[3:], *in_order[1:3]]
    assert [prompt.media_key for prompt in plan.prompts] in (in_order, other_order)
    # prompt, the two steps' common tokens, then a picture and its two continuations a chain
    below = len(first.ids) + 1 + 1 + 1 + len(wide.ids) + 1
    assert plan.slots == len(prompts[0].ids) - 1 + 2 + 2 * below


def test_the_dense_layout_places_pictures_too():
    module, model = tiny_vlm()
    found, _ = rollout([1, 2, 3])
    prompts, row_tree, completions, observations = case_of(found)
    width, length = max(map(len, completions)), len(prompts[0].ids)
    ids = torch.zeros(len(completions), length + width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, completion in enumerate(completions):
        ids[row, : length + len(completion)] = torch.tensor([*prompts[0].ids, *completion])
        mask[row, : length + len(completion)] = 1
    of_row = [prompts[tree] for tree in row_tree]
    got, _ = dense_forward(model, module, of_row, ids, mask, width, observations)
    wanted, _ = reference(model, found)
    assert (got - wanted).abs().max() <= 5e-6


def test_offsets_of_a_hand_example():
    """A 2 x 3 picture between three tokens and one token: text 0 1 2, start 3, cells from 4, end at 4 + 3, then 8."""
    seen = vlm_prompt([PICTURE])
    offsets = completion_offsets([(3, seen)], 3 + 8 + 2)
    assert offsets.tolist() == [
        [0, 1, 2, 3, *[4] * 6, 7, 8, 9],
        [0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8, 9],
        [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9],
    ]
    assert np.array_equal(completion_offsets([], 4), [[0, 1, 2, 3]])


class TestEncoding:
    def test_foreign_text_brings_no_special_token_and_a_template_does(self, tiny_vlm):
        module = tiny_vlm[0]
        foreign = module.encode_observation([{"type": "text", "text": "a<|im_end|><|image_pad|>"}])
        special = set(module.tokenizer.all_special_ids)
        assert not special & set(foreign.ids)
        assert module.tokenizer.decode(foreign.ids) == "a<|im_end|><|image_pad|>"
        ours = module.encode_observation([{"type": "template", "text": "<|im_end|>\n"}])
        assert ours.ids[0] == module.tokenizer.convert_tokens_to_ids("<|im_end|>")

    def test_a_picture_has_as_many_placeholders_as_features(self, tiny_vlm):
        module = tiny_vlm[0]
        parts = [{"type": "text", "text": "see "}, {"type": "image", "image": Image.new("RGB", (84, 56))}]
        seen = module.encode_observation([*parts, {"type": "text", "text": " there"}])
        assert seen.ids.count(module.config.image_token_id) == 6
        assert seen.image_sizes == [(84, 56)] and seen.media["image_grid_thw"].tolist() == [[1, 4, 6]]
        assert seen.position_ids[:, 0].tolist() == [0, 0, 0]

    def test_a_text_model_refuses_a_picture(self, tiny_text):
        with pytest.raises(ValueError, match="an observation has a picture, but qwen2 is a text model"):
            tiny_text[0].encode_observation([{"type": "image", "image": Image.new("RGB", (84, 56))}])
        assert tiny_text[0].encode_observation([{"type": "text", "text": "ab"}]).next_position >= 1


def test_the_text_prompt_of_a_text_model_needs_no_axes():
    (plan,) = build_plans([text_prompt([1, 2])], [0], [[3, 4]])
    assert plan.position_ids.shape == (1, 3)
