"""An adapter is loaded in full or not at all, and a checkpoint folder is enough to go on from."""

import copy
import json
import re

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from model.loading import AdapterError, adapter_base, load_adapter, load_policy

TURN = [{"role": "user", "content": "Where is it?"}]


def logits(module, model):
    prompt = module.encode(TURN)
    with torch.no_grad():
        return model(input_ids=torch.tensor([prompt.ids]), position_ids=prompt.position_ids[:, None]).logits


@pytest.fixture
def trained(tiny_vlm, tiny_model_dir, tmp_path):
    """(folder of an adapter with non-zero weights and its processor, logits of the model it was saved from)."""
    module, base, processor = tiny_vlm
    torch.manual_seed(0)
    targets = module.lora_target_modules(base)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM")
    model = get_peft_model(copy.deepcopy(base), config).eval()
    folder = tmp_path / "adapter"
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = str(tiny_model_dir)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder, logits(module, model)


def rewrite(folder, change) -> None:
    """Applies `change` to the adapter's dict of tensors."""
    file = folder / "adapter_model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(file).items()}
    save_file(change(weights), file, metadata={"format": "pt"})


def test_an_adapter_comes_back_as_it_was(tiny_vlm, trained):
    module, base, _ = tiny_vlm
    folder, expected = trained
    loaded = load_adapter(copy.deepcopy(base), folder).eval()
    torch.testing.assert_close(logits(module, loaded), expected, atol=1e-6, rtol=0)
    assert not torch.allclose(logits(module, base), expected, atol=1e-3), "the adapter must change the logits"
    assert not any(parameter.requires_grad for name, parameter in loaded.named_parameters() if "lora_" in name)


def test_an_adapter_can_be_trained_on(tiny_vlm, trained):
    model = load_adapter(copy.deepcopy(tiny_vlm[1]), trained[0], trainable=True)
    open_weights = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert open_weights == {name for name, _ in model.named_parameters() if "lora_" in name}


@pytest.mark.parametrize(
    "setting", [{"bias": "lora_only"}, {"init_lora_weights": "pissa"}, {"trainable_token_indices": [5]}], ids=str
)
def test_an_adapter_that_changes_more_than_low_rank_is_not_trained_on(tiny_vlm, trained, setting):
    """A second adapter, the frozen reference, would take its part out of the base once more, or share what moves."""
    file, (name, value) = trained[0] / "adapter_config.json", *setting.items()
    file.write_text(json.dumps(json.loads(file.read_text()) | setting))
    with pytest.raises(
        AdapterError, match=re.escape(f"has {name}={value}, which changes base weights in addition to LoRA's own")
    ):
        load_adapter(copy.deepcopy(tiny_vlm[1]), trained[0], trainable=True)


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_trained_biases_come_back(tiny_vlm, tmp_path, bias):
    module, base, _ = tiny_vlm
    model = get_peft_model(copy.deepcopy(base), LoraConfig(r=2, target_modules=["q_proj"], bias=bias)).eval()
    for _, weight in model.named_parameters():
        weight.data += 0.05 * weight.requires_grad
    model.save_pretrained(tmp_path)
    loaded = load_adapter(copy.deepcopy(base), tmp_path).eval()
    torch.testing.assert_close(logits(module, loaded), logits(module, model), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: {k.replace("language_model.", ""): v for k, v in w.items()}, r"the adapter lacks (\d+) of its \1 "),
        (lambda w: dict(list(w.items())[1:]), "the adapter lacks 1 of its"),
        (lambda w: w | {"base_model.model.model.extra.lora_A.weight": torch.ones(4, 4)}, "no place for 1 of its"),
        (lambda w: {k: v * ("lora_B" not in k) for k, v in w.items()}, "every lora_B is zero"),
        (lambda w: {k: v.repeat(2, 1) if "_B" in k else v for k, v in w.items()}, r"has shape \(.* in the adapter and"),
    ],
    ids=["renamed prefix", "missing", "unexpected", "untrained", "other size"],
)
def test_an_adapter_that_does_not_fit_is_refused(tiny_vlm, trained, change, message):
    base = copy.deepcopy(tiny_vlm[1])
    rewrite(trained[0], change)
    with pytest.raises(ValueError, match=message) as caught:
        load_adapter(base, trained[0])
    assert str(trained[0]) in str(caught.value)
    assert ("does not fit" in str(caught.value)) == ("zero" not in message)  # an untrained one fits, and does nothing
    assert not any("lora_" in name for name, _ in base.named_parameters()), "the model is handed back as it was"


def test_an_adapter_of_another_architecture_is_refused(tiny_text, trained):
    with pytest.raises(ValueError, match=r"does not fit Qwen2ForCausalLM.*Give the base model"):
        load_adapter(copy.deepcopy(tiny_text[1]), trained[0])


def test_models_and_adapters_are_told_apart(trained, tiny_model_dir, tmp_path):
    folder, _ = trained
    with pytest.raises(ValueError, match="is a LoRA adapter, not a model: pass it as --adapter_path"):
        load_policy(str(folder), dtype="float32")
    with pytest.raises(ValueError, match="is a whole model, not an adapter: pass it as --model_name_or_path"):
        load_policy(str(tiny_model_dir), str(tiny_model_dir), dtype="float32")
    with pytest.raises(ValueError, match=r"has no adapter_config\.json"):
        load_policy(str(tiny_model_dir), str(tmp_path), dtype="float32")
    with pytest.raises(ValueError, match="neither a model nor an adapter was named"):
        load_policy(None, dtype="float32")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match="the save was cut off"):
        load_policy(None, str(folder), dtype="float32")


def test_an_adapter_folder_is_enough(trained, tiny_model_dir):
    folder, expected = trained
    assert adapter_base(folder) == str(tiny_model_dir)
    module, model, processor = load_policy(None, str(folder), dtype="float32")
    torch.testing.assert_close(logits(module, model.eval()), expected, atol=1e-6, rtol=0)
    assert processor.tokenizer.padding_side == "left"


def test_the_adapters_own_pixel_limits_hold_unless_others_are_given(trained):
    folder, _ = trained
    settings = json.loads((folder / "processor_config.json").read_text())
    settings["image_processor"]["size"] = {"shortest_edge": 784, "longest_edge": 7840}
    (folder / "processor_config.json").write_text(json.dumps(settings))
    for given, expected in (({}, 7840), ({"max_pixels": 15680}, 15680)):
        processor = load_policy(None, str(folder), dtype="float32", **given)[2]
        assert processor.image_processor.size["longest_edge"] == expected


def test_a_text_adapter_folder_is_enough_too(tiny_text, tiny_text_dir, tmp_path):
    module, base, tokenizer = tiny_text
    config = LoraConfig(r=2, target_modules=module.lora_target_modules(base), init_lora_weights=False)
    get_peft_model(copy.deepcopy(base), config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    _, model, again = load_policy(str(tiny_text_dir), str(tmp_path), dtype="float32")
    assert again.chat_template == tokenizer.chat_template
    assert len(again) == len(tokenizer)
    assert sum("lora_B" in name for name, _ in model.named_parameters()) == 14
