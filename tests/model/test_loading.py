"""Model folders and adapters that are incomplete or damaged: one sentence that names the folder."""

import json
import shutil

import pytest

from model.loading import load_adapter, load_policy


@pytest.fixture
def adapter(tiny_vlm, tiny_model_dir, tmp_path):
    """A folder with an adapter that does something."""
    import copy

    import torch
    from peft import LoraConfig, get_peft_model

    module, model, _ = tiny_vlm
    config = LoraConfig(r=2, target_modules=module.lora_target_modules(model), base_model_name_or_path="")
    tuned = get_peft_model(copy.deepcopy(model), config)
    for name, weight in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.constant_(weight, 0.01)
    tuned.peft_config["default"].base_model_name_or_path = str(tiny_model_dir)
    tuned.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def cut_off(folder):
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:500])


def diverge(folder):
    from safetensors.torch import load_file, save_file

    file = folder / "adapter_model.safetensors"
    save_file({name: weight * float("nan") for name, weight in load_file(file).items()}, file)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut_off, "the adapter cannot be loaded .SafetensorError"),
        (diverge, "holds NaN or infinity: the training that saved it had diverged"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "adapter_config.json is not JSON"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "must hold a JSON object, not a list"),
    ],
    ids=["cut off", "NaN", "no JSON", "a list"],
)
def test_a_broken_adapter(adapter, tiny_model_dir, tiny_vlm, damage, sentence):
    import copy

    damage(adapter)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_adapter(copy.deepcopy(tiny_vlm[1]), adapter)
    assert str(adapter) in str(caught.value)


def test_an_adapter_whose_base_is_gone(adapter, tmp_path):
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "/gone"}))
    with pytest.raises(ValueError, match="adapter was trained on /gone; give its base as --model_name_or_path"):
        load_policy(None, str(adapter), dtype="float32")
    shutil.rmtree(adapter)
    with pytest.raises(ValueError, match=r"has no adapter_config\.json"):
        load_policy(None, str(adapter), dtype="float32")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            "the model cannot be loaded .OSError",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"version https://git-lfs"),
            "the model cannot be",
        ),
        (lambda folder: (folder / "processor_config.json").unlink(), "the processor cannot be loaded"),
        (lambda folder: (folder / "chat_template.jinja").unlink(), "has no chat template: copy chat_template.jinja"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer|processor cannot be loaded"),
    ],
    ids=["no weights", "a pointer for weights", "no processor", "no template", "no tokenizer"],
)
def test_a_model_folder_that_is_not_whole(tiny_model_dir, tmp_path, damage, sentence):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_dir, folder)
    damage(folder)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_policy(str(folder), dtype="float32")
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_a_whole_model_beside_an_adapter_is_refused_by_both_names(adapter, tiny_model_dir, tiny_vlm):
    for file in tiny_model_dir.iterdir():
        if file.name in ("config.json", "model.safetensors"):
            shutil.copy(file, adapter)
    sentence = r"whole model \(model\.safetensors\) and an adapter \(adapter_model\.safetensors\)"
    with pytest.raises(ValueError, match=sentence):
        load_policy(None, str(adapter), dtype="float32")
    with pytest.raises(ValueError, match=sentence):
        load_policy(str(adapter), dtype="float32")
