"""Packed rows give the log-probs, entropies and gradients of one row per leaf, on every kind of prompt."""

import copy
import itertools
import random

import pytest
import torch
from packing_cases import (
    PICTURE,
    TEMPERATURE,
    TREE,
    WIDE,
    assert_packed_equals_dense,
    assert_same_gradients,
    build_plan,
    dense,
    gradients,
    mixed_case,
    one_prompt_case,
    text_model,
    text_prompt,
    tiny_vlm,
    vlm_prompt,
)
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from trainer.logprobs.packing import build_plans, packed_forward


@pytest.mark.parametrize(
    ("parts", "slots"),
    [
        ([1, 2, 3], 2 + 12),
        ([1, PICTURE, 2], 9 + 12),
        ([1, PICTURE, 2, WIDE, 3, 4], 17 + 12),
        ([1, ("video", (2, 4, 4)), 2], 11 + 12),
    ],
    ids=["text", "one picture", "two pictures", "video"],
)
def test_packed_equals_dense_on_a_vision_model(parts, slots):
    plans = assert_packed_equals_dense(*tiny_vlm(), one_prompt_case(vlm_prompt(parts)))
    assert [plan.slots for plan in plans] == [slots]


def test_prompts_of_every_kind_share_a_plan():
    assert_packed_equals_dense(*tiny_vlm(), mixed_case())


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize(("family", "config"), [(Qwen2ForCausalLM, Qwen2Config), (LlamaForCausalLM, LlamaConfig)])
def test_text_models_with_and_without_grouped_heads(family, config, heads, kv_heads):
    module, model = text_model(family, config, heads, kv_heads)
    assert_packed_equals_dense(module, model, one_prompt_case(text_prompt([1, 2, 3])))


def test_slots_of_a_hand_example():
    # Prompt 1 2 3; the fork after 7 8 carries the 8 twice.
    plan = build_plan([text_prompt([1, 2, 3])], [0, 0, 0], [[7, 8, 6], [7, 8, 5], [9]])
    assert plan.input_ids.tolist() == [[1, 2, 3, 7, 8, 8, 3]]
    assert plan.shift_labels.tolist() == [[-100, -100, 7, 8, 5, 6, 9]]
    assert plan.position_ids.tolist() == [[0, 1, 2, 3, 4, 4, 2]]
    assert plan.subtree_end.tolist() == [7, 7, 6, 6, 5, 6, 7]
    assert plan.slot_of.tolist() == [[2, 3, 5], [2, 3, 4], [6, -1, -1]]
    assert plan.slots == 7
    assert plan.attention_mask()[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 1, 0],
        [1, 1, 0, 0, 0, 0, 1],
    ]


def test_a_picture_prompt_continues_behind_its_largest_position():
    prompt = vlm_prompt([1, ("image", (1, 4, 12)), 2])
    plan = build_plan([prompt], [0], [[5, 6, 7]])
    last = int(prompt.position_ids[:, -1].max())
    assert last + 1 == prompt.next_position < len(prompt.ids)
    assert plan.position_ids[:, 0, -3:].tolist() == [[last, last + 1, last + 2]] * 3


def test_equal_prompts_merge_and_other_pictures_never_do():
    one, same, other = (vlm_prompt([1, PICTURE, 2], seed) for seed in (0, 0, 1))
    assert one.ids == other.ids and one.media_key == same.media_key != other.media_key
    merged = build_plan([one, same], [0, 1], [[5, 6], [5, 7]])
    apart = build_plan([one, other], [0, 1], [[5, 6], [5, 7]])
    assert merged.slots == len(one.ids) - 1 + 3 and len(merged.prompts) == 1
    assert apart.slots == 2 * (len(one.ids) - 1 + 2) and apart.prompts == [one, other]
    assert not apart.attention_mask()[0, 0, apart.slots // 2 :, : apart.slots // 2].any()
    assert_packed_equals_dense(*tiny_vlm(), ([one, other, same], [2, 1, 0, 1], TREE))


def test_media_of_a_prompt_go_in_once():
    case = mixed_case()
    media = tiny_vlm()[0].batch_media(build_plan(*case).prompts)
    assert len(media["image_grid_thw"]) == 3 and len(media["video_grid_thw"]) == 1


def random_forest(rng):
    """Rows that grow from random beginnings of earlier rows, so depths and forks are irregular; repeats included."""
    prompts = [text_prompt(rng.choices(range(5), k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
    row_prompt, rows = [], []
    for _ in range(rng.randint(1, 12)):
        stem = rng.choice(rows)[: rng.randint(0, 9)] if rows else []
        row_prompt.append(rng.randrange(len(prompts)))
        rows.append(stem + rng.choices(range(3), k=rng.randint(0, 6)))
    rows[0] = rows[0] or [1]
    return prompts, row_prompt, rows


def prefixes(prompts, row_prompt, rows):
    """The distinct (prompt, path) a slot stands for, the insides of the prompts not counted."""
    return {
        (tuple(prompts[p].ids), tuple(row[: d + 1]))
        for p, row in zip(row_prompt, rows, strict=True)
        for d in range(len(row))
    }


@pytest.mark.parametrize("seed", range(50))
def test_random_forests(seed):
    module, model = text_model()
    case = prompts, row_prompt, rows = random_forest(random.Random(seed))
    plan = build_plan(*case)
    distinct = {tuple(prompts[p].ids) for p in row_prompt}
    assert plan.slots == len(prefixes(*case)) + sum(len(ids) - 1 for ids in distinct)
    mask = plan.attention_mask()[0, 0]
    for row, (p, completion) in enumerate(zip(row_prompt, rows, strict=True)):
        slots = plan.slot_of[row][plan.slot_of[row] >= 0].tolist()
        assert plan.shift_labels[0, slots].tolist() == completion
        assert plan.gather(plan.shift_labels)[row, : len(completion)].tolist() == completion
        for depth, slot in enumerate(slots):
            seen = mask[slot].nonzero()[:, 0].tolist()
            path = [*prompts[p].ids, *completion[:depth]]
            assert plan.input_ids[0, seen].tolist() == path
            assert plan.position_ids[0, seen].tolist() == list(range(len(path)))
    with torch.no_grad():
        got, wanted = packed_forward(model, module, [plan]), dense(model, *case)
    assert max((a - b).abs().max() for a, b in zip(got, wanted, strict=True)) <= 5e-6


def test_empty_and_one_token_completions():
    case = [text_prompt([4])], [0, 0, 0, 0], [[5], [], [5, 6], [7]]
    plans = assert_packed_equals_dense(*text_model(), case)
    assert plans[0].slots == 3
    assert plans[0].slot_of[1].tolist() == [-1, -1]


def test_width_of_the_results():
    plan = build_plan([text_prompt([1, 2])], [0, 0], [[5, 6], [5]], width=7)
    module, model = text_model()
    log_probs, entropies = packed_forward(model, module, [plan])
    assert log_probs.shape == entropies.shape == (2, 7)
    assert (log_probs[:, 2:] == 0).all() and (log_probs[0, :2] < 0).all()


@pytest.mark.parametrize("max_slots", [40, 60, 80])
def test_a_slot_budget_leaves_values_and_gradients_unchanged(max_slots):
    case = mixed_case()
    plans = assert_packed_equals_dense(*tiny_vlm(), case, max_slots=max_slots)
    assert len(plans) > 1
    assert all(plan.slots <= max_slots for plan in plans)
    held = sum((plan.slot_of >= 0).any(dim=1).int() for plan in plans)
    assert (held == 1).all()


def test_cuts_take_the_fewest_slots():
    """Against every way to cut the sorted rows."""
    prompts, row_prompt, rows = (
        [text_prompt([1, 2, 3])],
        [0] * 6,
        [[1, 1], [1, 2, 1], [1, 2, 2], [2], [2, 3], [2, 3, 4, 5]],
    )
    for budget in (6, 7, 8, 9, 10):
        total = sum(plan.slots for plan in build_plans(prompts, row_prompt, rows, max_slots=budget))
        ways = []
        for pattern in itertools.product([False, True], repeat=len(rows) - 1):
            bounds = [0, *(i + 1 for i, cut in enumerate(pattern) if cut), len(rows)]
            sizes = [build_plan(prompts, row_prompt[a:b], rows[a:b]).slots for a, b in itertools.pairwise(bounds)]
            ways += [sum(sizes)] if max(sizes) <= budget else []
        assert total == min(ways)


def test_a_budget_below_one_path_is_refused():
    with pytest.raises(ValueError, match=r"row 1 needs 6 slots \(prompt 3, completion 4 tokens\).*max_slots is 5"):
        build_plans([text_prompt([1, 2, 3])], [0, 0], [[5], [5, 6, 7, 8]], max_slots=5)


def test_backward_recomputes_cuts_on_the_bare_model():
    module, model = text_model()
    calls = []

    def wrapper(**kwargs):
        calls.append(torch.is_grad_enabled())
        return model(**kwargs)

    plans = build_plans(*one_prompt_case(text_prompt([1, 2, 3])), max_slots=10)
    log_probs, _ = packed_forward(wrapper, module, plans, bare_model=model)
    log_probs.sum().backward()
    assert len(calls) == len(plans) == 2


def test_cuts_inside_ddp(tmp_path):
    module, model = text_model()
    case = one_prompt_case(text_prompt([1, 2, 3]))
    wanted = gradients(model, *packed_forward(model, module, build_plans(*case)))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        plans = build_plans(*case, max_slots=10)
        got = gradients(model, *packed_forward(wrapped, module, plans, bare_model=model))
    finally:
        torch.distributed.destroy_process_group()
    assert len(plans) == 2
    assert_same_gradients(got, wanted)


def test_memory_of_cut_forwards_is_not_kept():
    """What autograd saves between forward and backward is that of the checkpoints only."""
    module, model = text_model()

    def saved(plans):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
            packed_forward(model, module, plans)
        return sum(kept)

    case = one_prompt_case(text_prompt([1, 2, 3]))
    assert saved(build_plans(*case, max_slots=10)) < saved(build_plans(*case)) / 20


def test_gradient_checkpointing_of_the_layers():
    module, model = tiny_vlm()
    case = mixed_case()
    wanted = gradients(model, *dense(model, *case))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    try:
        for max_slots in (None, 60):
            got = gradients(model, *packed_forward(model, module, build_plans(*case, max_slots=max_slots)))
            assert_same_gradients(got, wanted)
    finally:
        model.eval()
        model.gradient_checkpointing_disable()


def test_lora():
    module, base = tiny_vlm()[0], copy.deepcopy(tiny_vlm()[1])
    base.forward = type(base).forward.__get__(base)
    add_fused_lm_head(base, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=module.lora_target_modules(base), init_lora_weights=False)
    model = get_peft_model(base, lora).eval()
    case = mixed_case()
    wanted = gradients(model, *dense(model, *case))
    assert wanted and all("lora" in name for name in wanted)
    for max_slots in (None, 60):
        got = gradients(model, *packed_forward(model, module, build_plans(*case, max_slots=max_slots)))
        assert_same_gradients(got, wanted)
