"""Where LoRA goes by the settings, which towers it leaves alone, and what comes back of it."""

import copy

import pytest
import torch
from trainer_cases import demo_rows, length_reward, logged, move, settings

from config.model_config import GRPOModelConfig
from model.loading import load_policy, trainable_report
from trainer.grpo_ma_trainer import GRPOMATrainer


@pytest.fixture
def make(tiny_vlm, tmp_path):
    def call(args=None, **changes):
        module, model, processor = tiny_vlm
        config, model = GRPOModelConfig(lora_r=2, **changes), copy.deepcopy(model)
        module.freeze(model, config.freeze_vision)
        args = settings(tmp_path / "run", **(args or {}))
        lora = config.lora(module, model)
        return GRPOMATrainer(model, length_reward, args, demo_rows(2), None, processor, module, peft_config=lora)

    return call


@pytest.mark.parametrize("names", [["all-linear"], ["q_proj", "gate_proj", "qkv"], ["q_proj"], [r".*\.(o|gate)_proj"]])
def test_names_of_both_towers_mean_the_language_model_while_the_other_is_frozen(make, names):
    """Qwen2.5-VL's vision MLP has a gate_proj too, and `all-linear` takes every linear layer there is."""
    trainer = make(lora_target_modules=names)
    report = trainable_report(trainer.model, trainer.module)
    assert report["language"][0] > 0
    assert report["vision"][0] == report["merger"][0] == 0
    assert not any("lora_" in name for name, _ in trainer.model.named_parameters() if "visual" in name)


def test_with_the_vision_tower_open_they_mean_both(make):
    trainer = make(lora_target_modules=["all-linear"], freeze_vision=False)
    assert all(trainable > 0 for trainable, _ in trainable_report(trainer.model, trainer.module).values())


def test_a_single_name_finds_what_a_list_of_it_finds(make):
    trainer = make(lora_target_modules=["q_proj"])
    adapted = {name.split(".lora_")[0] for name, _ in trainer.model.named_parameters() if ".lora_" in name}
    layers = trainer.model.config.get_text_config().num_hidden_layers
    assert len(adapted) == layers
    assert all(name.endswith("q_proj") for name in adapted)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lora_modules_to_save": ["score"]}, "lora_modules_to_save=score: Qwen2_5_VL.* has no such module"),
        ({"lora_modules_to_save": ["merger"]}, "trains model.visual.merger, but freeze_vision is True"),
    ],
)
def test_modules_that_are_not_there_or_frozen_are_named(make, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(**changes)


def test_an_adapter_on_the_embedding_comes_back_and_is_its_own_reference(make, tiny_vlm, tiny_model_dir, tmp_path):
    trained = make(lora_target_modules=["embed_tokens", "q_proj"])
    move(trained.model, 0.05)
    folder = str(tmp_path / "adapter")
    trained.save_model(folder)
    module, model, processor = load_policy(str(tiny_model_dir), folder, dtype="float32", trainable=True)
    ids = torch.arange(10, 22)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=ids).logits, trained.model.eval()(input_ids=ids).logits)

    args = settings(tmp_path / "on", beta=0.1)
    trainer = GRPOMATrainer(model, length_reward, args, demo_rows(2), None, processor, module)
    trainer.train()
    assert logged(trainer, "thought/kl")[0] < 1e-6
