"""scripts/merge_adapter.py: the merged model gives the adapter's logits, with a picture too, or nothing is written."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from model.loading import load_policy
from scripts import merge_adapter as script


def save_adapter(module, model, processor, base, folder):
    torch.manual_seed(0)
    targets = module.lora_target_modules(model)
    tuned = get_peft_model(copy.deepcopy(model), LoraConfig(r=4, target_modules=targets, init_lora_weights=False))
    tuned.peft_config["default"].base_model_name_or_path = str(base)
    tuned.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def adapter(tiny_vlm, tiny_model_dir, tmp_path):
    return save_adapter(*tiny_vlm, tiny_model_dir, tmp_path / "adapter")


def logits(folder, adapter=None):
    module, model, _ = load_policy(folder and str(folder), adapter and str(adapter), dtype="float32")
    return script.logits_of(model.eval(), module, script.sample_prompts(module))


def test_the_merged_model_gives_the_logits_of_the_adapter_unless_asked_otherwise(adapter, tmp_path, capsys):
    assert script.main([str(adapter), str(tmp_path / "merged")]) == 0
    expected, found = logits(None, adapter), logits(tmp_path / "merged")
    assert len(found) == 2, "one prompt has a picture"
    assert script.largest_gap(expected, found) <= 1e-4
    said = capsys.readouterr().out
    assert "with the adapter and merged differ by at most" in said
    assert float(said.split("adapter moves them by ")[1].split()[0]) > 1e-2
    assert "rounding" not in said
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_half_precision_is_rounded_once_after_the_proof(adapter, tmp_path, capsys):
    assert script.main([str(adapter), str(tmp_path / "merged"), "--dtype", "bfloat16"]) == 0
    moved = float(capsys.readouterr().out.split("rounding to bfloat16 moves them by ")[1].split()[0])
    assert script.largest_gap(logits(None, adapter), logits(tmp_path / "merged")) == pytest.approx(moved, rel=0.06)
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def test_the_help_says_the_default_and_why(capsys):
    with pytest.raises(SystemExit):
        script.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "(default: float32, which keeps the adapter's logits" in said
    assert "rounding moves the logits by about 0.1, merging in float32 by 1e-5" in said


def test_a_text_model_is_merged_too(tiny_text, tiny_text_dir, tmp_path):
    folder = save_adapter(*tiny_text, tiny_text_dir, tmp_path / "adapter")
    assert script.main([str(folder), str(tmp_path / "merged")]) == 0
    assert script.largest_gap(logits(None, folder), logits(tmp_path / "merged")) <= 1e-4


def test_logits_that_differ_are_not_written(adapter, tmp_path, capsys, monkeypatch):
    from peft.tuners.lora import LoraModel

    monkeypatch.setattr(LoraModel, "merge_and_unload", LoraModel.unload)  # the adapter is lost
    assert script.main([str(adapter), str(tmp_path / "merged")]) == 2
    assert "the merged logits differ by" in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()


def zeroed(weights):
    return {name: weight * ("lora_B" not in name) for name, weight in weights.items()}


def renamed(weights):
    return {name.replace("language_model.", ""): weight for name, weight in weights.items()}


@pytest.mark.parametrize(("damage", "words"), [(zeroed, "every lora_B is zero"), (renamed, "does not fit")])
def test_a_wrong_adapter_gives_a_sentence(adapter, tmp_path, capsys, damage, words):
    file = adapter / "adapter_model.safetensors"
    save_file(damage(load_file(file)), file)
    assert script.main([str(adapter), str(tmp_path / "merged")]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_that_is_not_empty_and_another_base_are_refused(adapter, tiny_text_dir, tmp_path, capsys):
    assert script.main([str(adapter), str(adapter)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert script.main([str(adapter), str(tmp_path / "m"), "--model_name_or_path", str(tiny_text_dir)]) == 2
    assert "does not fit" in capsys.readouterr().err
