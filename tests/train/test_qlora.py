"""Training on 4-bit base weights, with bitsandbytes' CPU library where there is no GPU (extra `qlora`)."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from trainer_cases import demo_rows, length_reward, settings

from config.model_config import GRPOModelConfig
from model.loading import load_policy, trainable_report
from model.quantised import saved_quantisation
from scripts import merge_adapter
from task.errors import UserError
from trainer.grpo_ma_trainer import GRPOMATrainer

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install -e '.[qlora]'")
pytestmark = pytest.mark.slow


@pytest.fixture
def trainer_of(tiny_model_dir):
    """Makes a trainer of the demo model on base weights of 4 or 8 bits, or, with None, on float ones."""

    def make(folder, bits=4, **changes):
        model_args = GRPOModelConfig(lora_r=4, **({f"load_in_{bits}bit": True} if bits else {}))
        module, model, processor = load_policy(
            str(tiny_model_dir), dtype="float32", quantization_config=model_args.quantization("float32"), trainable=True
        )
        module.freeze(model, freeze_vision=True)
        args = settings(folder, max_steps=2, save_strategy="steps", save_steps=1, optim="adamw_torch", **changes)
        lora = model_args.lora(module, model)
        return GRPOMATrainer(model, length_reward, args, demo_rows(2), None, processor, module, peft_config=lora)

    return make


def test_two_steps_a_resume_and_a_merge(trainer_of, tiny_model_dir, tmp_path, capsys):
    trainer = trainer_of(tmp_path / "run", beta=0.04)
    report = trainable_report(trainer.model, trainer.module)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    assert trainer.model.get_base_model().is_loaded_in_4bit
    trainer.train()
    trainer.save_final()
    said = capsys.readouterr().out
    assert float(said.split("packed and dense log-probs differ by at most ")[1].split(",")[0]) < 2e-5
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, before[name]) != (weight.requires_grad), name
        assert weight.dtype == torch.float32 or not weight.requires_grad, name

    whole = load_policy(str(tiny_model_dir), dtype="float32")
    counted = trainable_report(whole[1], whole[0])
    assert {tower: total for tower, (_, total) in report.items() if tower != "language"} == {
        tower: total for tower, (_, total) in counted.items() if tower != "language"
    }, "two weights in a byte are two"

    last = load_file(tmp_path / "run" / "checkpoint-2" / "adapter_model.safetensors")
    shutil.copytree(tmp_path / "run" / "checkpoint-1", tmp_path / "again" / "checkpoint-1")
    again = trainer_of(tmp_path / "again", beta=0.04)
    again.train(resume_from_checkpoint=str(tmp_path / "again" / "checkpoint-1"))
    resumed = load_file(tmp_path / "again" / "checkpoint-2" / "adapter_model.safetensors")
    assert all(torch.equal(last[name], resumed[name]) for name in last), "as the run that was not interrupted"

    float_run = trainer_of(tmp_path / "float", bits=None, beta=0.04)
    fault = float_run.resume_fault(str(tmp_path / "run" / "checkpoint-1"))
    assert "trained on 4-bit weights (nf4), and this run has float weights (load_in_4bit" in fault

    capsys.readouterr()
    assert merge_adapter.main([str(tmp_path / "run"), str(tmp_path / "merged")]) == 0
    said = capsys.readouterr().out
    moved = float(said.split("is merged into float ones: their logits differ by ")[1].split()[0])
    assert 1e-2 < moved < 5, "the float base is another model than the one that was trained"


def test_layers_compute_the_same_in_evaluation_and_training(tiny_model_dir):
    """bitsandbytes' shortcut for evaluation on a CPU moves these logits by 0.12, and its product has no gradient."""
    quantised = GRPOModelConfig(load_in_4bit=True).quantization("float32")
    module, model, _ = load_policy(str(tiny_model_dir), dtype="float32", quantization_config=quantised)
    prompts = merge_adapter.sample_prompts(module)
    trained = merge_adapter.logits_of(model.train(), module, prompts)
    evaluated = merge_adapter.logits_of(model.eval(), module, prompts)
    after = merge_adapter.logits_of(model.train(), module, prompts)
    assert len(prompts) == 2
    assert merge_adapter.largest_gap(trained, evaluated) == merge_adapter.largest_gap(trained, after) == 0


def test_8_bit_steps_train_the_adapter(trainer_of, tmp_path):
    trainer = trainer_of(tmp_path, bits=8)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train()
    assert all(not torch.equal(p, before[name]) for name, p in trainer.model.named_parameters() if name in before)
    assert saved_quantisation(tmp_path / "checkpoint-2")["load_in_8bit"] is True


def test_a_merge_without_bitsandbytes_says_what_it_cannot_compute(trainer_of, tmp_path, monkeypatch, capsys):
    trainer = trainer_of(tmp_path / "run")
    trainer.train()
    trainer.save_final()
    assert json.loads((tmp_path / "run" / "quantization.json").read_text())["bnb_4bit_quant_type"] == "nf4"

    def unavailable(*args, **kwargs):
        if kwargs.get("quantization_config") is not None:
            raise UserError("bitsandbytes is not installed")
        return load_policy(*args, **kwargs)

    monkeypatch.setattr(merge_adapter, "load_policy", unavailable)
    assert merge_adapter.main([str(tmp_path / "run"), str(tmp_path / "merged")]) == 0
    assert "cannot be computed here (bitsandbytes is not installed)" in capsys.readouterr().out
