"""Attention of a slot to its ancestors: every form of the mask, and what is refused."""

import copy

import pytest
import torch
from packing_cases import assert_packed_equals_dense, build_plan, mixed_case, text_model, text_prompt, tiny_vlm
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from trainer.logprobs.forward import RowForward
from trainer.logprobs.packing import packed_forward
from trainer.logprobs.tree_attention import attention_by_tower, check_packable, interval_attention, use_tree_attention


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_full_mask_backends(attention):
    module, model = tiny_vlm()
    model.set_attn_implementation({"text_config": attention})
    try:
        assert_packed_equals_dense(module, model, mixed_case())
    finally:
        use_tree_attention(model)


def test_flex_attention_gives_the_same():
    """Forward only: torch's flex_attention has no backward on a CPU."""
    module, model = tiny_vlm()
    plan = build_plan(*mixed_case())
    with torch.no_grad():
        wanted, _ = packed_forward(model, module, [plan])
        output = model(
            input_ids=plan.input_ids,
            attention_mask=plan.block_mask,
            position_ids=plan.position_ids,
            shift_labels=plan.shift_labels,
            fused_lm_head=True,
            use_cache=False,
            **module.batch_media(plan.prompts),
        )
    assert (plan.gather(output.log_probs) - wanted).abs().max() <= 5e-6


def test_interval_attention_over_many_blocks():
    torch.manual_seed(0)
    thoughts = [torch.randint(50, (150,)).tolist() for _ in range(3)]
    rows = [thought + torch.randint(50, (40,)).tolist() for thought in thoughts for _ in range(3)]
    plan = build_plan([text_prompt(range(70)), text_prompt(range(9))], [0] * 6 + [1] * 3, rows)
    query, key, value = torch.randn(1, 4, plan.slots, 8), *torch.randn(2, 1, 2, plan.slots, 8)
    got = interval_attention(query, key, value, plan.subtree_end)
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=plan.attention_mask())
    assert plan.slots > 700
    assert (got - wanted).abs().max() <= 2e-6


def test_ordinary_calls_fall_back_to_sdpa():
    """A left-padded batch, as in generation, sees the mask it had before `use_tree_attention`."""
    _, model = text_model()
    ids, mask = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 6]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        got = model(input_ids=ids, attention_mask=mask).logits
        model.set_attn_implementation("sdpa")
        wanted = model(input_ids=ids, attention_mask=mask).logits
        use_tree_attention(model)
    assert torch.equal(got[mask.bool()], wanted[mask.bool()])


def test_the_vision_tower_keeps_its_own_attention():
    _, model = tiny_vlm()
    model.set_attn_implementation({"vision_config": "eager"})
    use_tree_attention(model)
    assert model.config.vision_config._attn_implementation == "eager"
    assert model.config.text_config._attn_implementation == "tree_attention"
    model.set_attn_implementation({"vision_config": "sdpa"})


def test_flash_attention_of_the_language_model_costs_no_packing():
    """The tower keeps what it has; on a machine with flash-attn that is flash_attention_2 too."""
    module, model = tiny_vlm()
    model = copy.deepcopy(model)
    model.set_attn_implementation({"vision_config": "eager"})
    model.config.text_config._attn_implementation_internal = "flash_attention_2"
    assert RowForward(module, model, "auto", None).sharing
    assert attention_by_tower(model) == {"language": "tree_attention", "vision": "eager"}


def test_a_sliding_window_without_layer_types_is_refused():
    """Mistral states one window for all its layers."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 1, "num_key_value_heads": 1}
    sizes |= {"vocab_size": 9, "intermediate_size": 8}
    with pytest.raises(ValueError, match=r"sliding_attention \(sliding_window=4096\) layers"):
        check_packable(MistralForCausalLM(MistralConfig(**sizes, sliding_window=4096)))
    check_packable(MistralForCausalLM(MistralConfig(**sizes, sliding_window=None)))


def test_sliding_window_layers_are_refused():
    config = Qwen2Config(
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=1,
        vocab_size=9,
        intermediate_size=8,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
    )
    with pytest.raises(ValueError, match=r"sliding_attention layers.*--prefix_sharing off"):
        check_packable(Qwen2ForCausalLM(config))
