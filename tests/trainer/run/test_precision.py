"""What is trained is kept in float32: bfloat16 weights would round most updates to nothing."""

import copy

import pytest
import torch
from peft import LoraConfig
from trainer_cases import largest_gap, random_tree, script, text_trainer, trainable, vlm_trainer, weights

from trainer.run.precision import cast_frozen, dtype_to_load, dtypes_of

BF16 = {"bf16": True, "use_cpu": True}


def lowered(tiny):
    module, model, processor = tiny
    return module, copy.deepcopy(model).to(torch.bfloat16), processor


def share_that_moved(trainer) -> float:
    """Trains, and gives the share of trainable numbers that changed."""
    before = {name: weight.float() for name, weight in weights(trainer).items()}
    trainer.train()
    after, names = weights(trainer), trainable(trainer)
    moved = sum((after[name].float() != before[name]).sum().item() for name in names)
    return moved / sum(after[name].numel() for name in names)


@pytest.mark.parametrize("rate", [1e-5, 1e-6])
def test_full_fine_tuning_in_bf16_moves_what_float32_moves(tiny_vlm, tmp_path, monkeypatch, rate):
    changes = {"lora": False, "rows": 6, "max_steps": 3, "optim": "adamw_torch", "learning_rate": rate}
    shares = []
    for name, tiny, more in (("float32", tiny_vlm, {}), ("bfloat16", lowered(tiny_vlm), BF16)):
        script(monkeypatch, random_tree)
        random_tree.calls = 0
        shares.append(share_that_moved(vlm_trainer(tiny, tmp_path / name, **changes, **more)))
    single, mixed = shares
    assert single > 0.9
    assert mixed >= 0.95 * single


def test_the_frozen_part_stays_in_bfloat16_and_a_resumed_run_is_exact(tiny_vlm, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "learning_rate": 1e-5, "optim": "adamw_torch"}
    whole = vlm_trainer(lowered(tiny_vlm), tmp_path, lora=False, **saving, **BF16)
    types = {(p.requires_grad, p.dtype) for p in whole.model.parameters()}
    assert types == {(True, torch.float32), (False, torch.bfloat16)}
    assert dtypes_of(whole.model) == "bfloat16, trained ones float32"
    whole.train()
    again = vlm_trainer(lowered(tiny_vlm), tmp_path, lora=False, **saving, **BF16)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert largest_gap(weights(whole), weights(again)) == 0.0


def test_adapters_and_modules_beside_them_train_in_float32(tiny_text, tmp_path):
    module, model, _ = tiny_text
    lora = LoraConfig(
        r=4, target_modules=module.lora_target_modules(model), modules_to_save=["norm"], task_type="CAUSAL_LM"
    )
    trainer = text_trainer(lowered(tiny_text), tmp_path, peft_config=lora, max_steps=1, **BF16)
    assert {p.dtype for p in trainer.model.parameters() if p.requires_grad} == {torch.float32}
    assert any("modules_to_save" in name for name in trainable(trainer))
    trainer.train()


def test_without_mixed_precision_it_is_refused(tiny_text, tmp_path):
    with pytest.raises(
        ValueError, match=r"would be trained in bfloat16, which rounds most updates to nothing: set bf16"
    ):
        text_trainer(lowered(tiny_text), tmp_path, rows=4)


def test_a_model_that_trains_is_loaded_in_float32(tiny_text, tmp_path):
    mixed, single = (text_trainer(tiny_text, tmp_path, **more).args for more in (BF16, {}))
    assert dtype_to_load("bfloat16", mixed, adapter=False) == "float32"
    assert dtype_to_load("bfloat16", mixed, adapter=True) == "bfloat16"
    assert dtype_to_load("float32", single, adapter=False) == "float32"
    with pytest.raises(ValueError, match="dtype=bfloat16 with use_peft=False would train weights in bfloat16, which"):
        dtype_to_load("bfloat16", single, adapter=False)


def test_only_what_is_frozen_is_cast(tiny_vlm):
    module, model, _ = tiny_vlm
    model = copy.deepcopy(model)
    module.freeze(model, freeze_vision=True)
    cast_frozen(model, "bfloat16")
    for parameter in model.parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16)
    assert dtypes_of(model) == "bfloat16, trained ones float32"
