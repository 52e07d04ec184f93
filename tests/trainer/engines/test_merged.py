"""LoRA folded into the weights while completions are sampled: the same logits, and the same weights afterwards."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model

from scripts.merge_adapter import largest_gap, logits_of, sample_prompts
from trainer.engines.merged_lora import merged_lora


@pytest.mark.parametrize("targets", [["q_proj"], ["q_proj", "lm_head"]])
def test_folded_is_the_adapter(tiny_vlm, targets):
    """An adapter on an LM head that shares its weight with the embeddings must leave those as they are."""
    module, model, _ = tiny_vlm
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    torch.manual_seed(0)
    tuned = get_peft_model(
        copy.deepcopy(model), LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    ).eval()
    before = {name: weight.clone() for name, weight in tuned.named_parameters()}
    prompts = sample_prompts(module)
    expected = logits_of(tuned, module, prompts)
    with merged_lora(tuned):
        folded = [layer for layer in tuned.modules() if getattr(layer, "merged_adapters", None)]
        assert len(folded) == model.config.get_text_config().num_hidden_layers
        assert largest_gap(expected, logits_of(tuned, module, prompts)) <= 1e-4
    assert all(torch.equal(weight, before[name]) for name, weight in tuned.named_parameters())


def test_an_adapter_with_biases_of_its_own_is_not_folded(tiny_vlm):
    """They are no part of the delta of the weight: completions would come from another policy than the one trained."""
    module, model, _ = tiny_vlm
    tuned = get_peft_model(copy.deepcopy(model), LoraConfig(r=4, target_modules=["q_proj"], lora_bias=True)).eval()
    for name, weight in tuned.named_parameters():
        if "lora_B" in name:
            weight.data += 0.1
    prompts = sample_prompts(module)
    expected = logits_of(tuned, module, prompts)
    with merged_lora(tuned):
        assert largest_gap(expected, logits_of(tuned, module, prompts)) <= 1e-4
