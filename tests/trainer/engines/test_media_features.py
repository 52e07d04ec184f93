"""A frozen tower computes each distinct picture once per generation, and no value or gradient depends on it."""

import copy
import gc
import weakref

import pytest
import torch
from agent_cases import act_by_text
from peft import LoraConfig, get_peft_model
from picture_cases import noise
from trainer_cases import chain_tree, demo_rows, largest_gap, run, vlm_trainer, weights

from dataset.dataset_grpo import rows_from_records
from model.qwen_module import Qwen2_5VLModule
from task.gridworld import draw
from task.task_loader import load_tasks
from trainer.engines.media_features import MediaFeatures
from trainer.logprobs.dummy_media import rollout_media_kinds
from trainer.rollout import Rollout


def tower(model):
    return model.get_submodule("base_model.model.model.visual" if hasattr(model, "peft_config") else "model.visual")


def count_calls(model) -> list[list[int]]:
    """Grows by the grid of the media of each call of the vision tower."""
    calls = []
    tower(model).register_forward_pre_hook(
        lambda layer, given, named: calls.append(named["grid_thw"].tolist()), with_kwargs=True
    )
    return calls


def without_features(monkeypatch) -> None:
    """From here on every pass runs the tower on the pixels."""
    monkeypatch.setattr(Qwen2_5VLModule, "has_fixed_features", lambda module, model: False)


def frozen(tiny_vlm):
    module, model, _ = tiny_vlm
    model = copy.deepcopy(model)
    module.freeze(model, freeze_vision=True)
    return module, model


def prompt_of(module, *media):
    """A user turn with these pictures (PIL) and videos (lists of them), in order."""
    images, videos = ([item for item in media if isinstance(item, list) is video] for video in (False, True))
    parts = [{"type": "image", "index": i} for i in range(len(images))]
    parts += [{"type": "video", "index": i} for i in range(len(videos))]
    return module.encode([{"role": "user", "content": [*parts, {"type": "text", "text": "Where?"}]}], images, videos)


def logits(model, module, prompts):
    """(tokens, vocabulary) logits of each prompt alone."""
    found = []
    for prompt in prompts:
        ids, positions = torch.tensor([prompt.ids]), prompt.position_ids[:, None]
        found.append(model(input_ids=ids, position_ids=positions, **module.batch_media([prompt])).logits[0])
    return found


A, B, CLIP = noise(0, 84, 56), noise(1, 112, 84), [noise(2, 84, 56), noise(3, 84, 56)]


class TestFeatures:
    def test_equal_pictures_of_different_prompts_are_one_call(self, tiny_vlm):
        module, model = frozen(tiny_vlm)
        calls, features = count_calls(model), MediaFeatures(model, module)
        prompts = [prompt_of(module, *media) for media in ((A, B), (A,), (B, CLIP, A), (CLIP,), ())]
        features.add(prompts)
        features.add(prompts)
        assert calls == [[[1, 4, 6]], [[1, 6, 8]], [[1, 4, 6]]], "two pictures and a clip of two frames"
        assert prompts[-1].features is None

    @pytest.mark.parametrize("autocast", [False, True])
    @pytest.mark.parametrize("media", [(A,), (A, B, A), (CLIP,), (B, CLIP, A)])
    def test_logits_are_those_from_the_pixels(self, tiny_vlm, media, autocast):
        module, model = frozen(tiny_vlm)
        prompts = [prompt_of(module, *media), prompt_of(module, *reversed(media))]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            wanted = logits(model, module, prompts)
            MediaFeatures(model, module).add(prompts)
            calls = count_calls(model)
            for got, pixels in zip(logits(model, module, prompts), wanted, strict=True):
                assert (got - pixels).abs().max() <= (0.1 if autocast else 1e-5)
        assert calls == []

    def test_pixels_beside_features_are_a_fault_of_ours(self, tiny_vlm):
        module, model = frozen(tiny_vlm)
        prompts = [prompt_of(module, A), prompt_of(module, B)]
        MediaFeatures(model, module).add(prompts[:1])
        with pytest.raises(AssertionError, match="some prompts have features"):
            module.batch_media(prompts)

    def test_the_log_prob_passes_then_need_no_dummies(self, tiny_vlm):
        module, model = frozen(tiny_vlm)
        prompt = prompt_of(module, A)
        rollout = Rollout.from_trees([prompt], [chain_tree("a", [[400], [401]])], 2)
        assert rollout_media_kinds(rollout) == [True, False]
        MediaFeatures(model, module).add([prompt])
        assert rollout_media_kinds(rollout) == [False, False]


class TestFixed:
    def test_a_frozen_tower_under_language_lora(self, tiny_vlm):
        module, model = frozen(tiny_vlm)
        assert module.has_fixed_features(model)
        get_peft_model(model, LoraConfig(r=2, target_modules=module.lora_target_modules(model)))
        assert module.has_fixed_features(model)

    @pytest.mark.parametrize("part", ["blocks.0.attn.qkv", "merger.mlp.2"])
    def test_not_with_anything_trained(self, tiny_vlm, part):
        module, model = frozen(tiny_vlm)
        model.model.visual.get_submodule(part).bias.requires_grad_(True)
        assert not module.has_fixed_features(model)

    def test_not_with_a_frozen_adapter_which_the_reference_lacks(self, tiny_vlm):
        module, model = frozen(tiny_vlm)
        get_peft_model(model, LoraConfig(r=2, target_modules=module.lora_target_modules(model, vision=True)))
        module.freeze(model, freeze_vision=True)
        assert not any(p.requires_grad for p in model.model.visual.parameters())
        assert not module.has_fixed_features(model)

    def test_not_with_a_frozen_copy_of_a_whole_layer(self, tiny_vlm):
        module, model = frozen(tiny_vlm)
        get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["visual.merger.mlp.2"]))
        module.freeze(model, freeze_vision=True)
        assert not module.has_fixed_features(model)


LAYOUTS = {
    "packed": {},
    "one row per leaf": {"prefix_sharing": "off"},
    "cut, checkpointed": {"max_slots": 420, "gradient_checkpointing": True},
    "whole weights": {"lora": False},
    "bf16": {"bf16": True},
}


def trained(tiny_vlm, folder, **changes):
    """A trainer after three generations of rollout, old, reference and two policy passes; its tower calls."""
    torch.manual_seed(0)
    given = {"beta": 0.04, "num_iterations": 2, "max_steps": 6, "optim": "adamw_torch", "learning_rate": 1e-3}
    trainer = vlm_trainer(tiny_vlm, folder, **{**given, **changes})
    calls = count_calls(trainer.model)
    return trainer, run(trainer), calls


class TestTraining:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_steps_are_those_with_the_tower_in_every_pass(self, tiny_vlm, tmp_path, monkeypatch, layout):
        trainer, once, calls = trained(tiny_vlm, tmp_path / "once", **LAYOUTS[layout])
        assert len(calls) == 3, "one picture in each of three generations"
        without_features(monkeypatch)
        other, always, more = trained(tiny_vlm, tmp_path / "always", **LAYOUTS[layout])
        assert len(more) >= 3 * 4, "prefill, old and two policy passes; the reference may be another model"
        assert once.losses == pytest.approx(always.losses, abs=1e-6)
        for left, right in zip(once.gradients, always.gradients, strict=True):
            assert largest_gap(left, right) <= 1e-6 * max(g.abs().max().item() for g in right.values())
        assert largest_gap(weights(trainer), weights(other)) <= 1e-7

    @pytest.mark.parametrize("lora", [True, False])
    def test_a_trained_tower_runs_in_every_pass_and_has_its_gradient(self, tiny_vlm, tmp_path, lora):
        trainer, seen, calls = trained(tiny_vlm, tmp_path, vision=True, lora=lora, max_steps=2)
        assert len(calls) >= 5
        assert all(prompt.features is None for prompt in trainer.generation.rollout.prompts)
        gradients = {name: g for name, g in seen.gradients[0].items() if "visual." in name and "lora_A" not in name}
        assert gradients and all(g.abs().max() > 0 for name, g in gradients.items() if "qkv" in name)

    def test_one_call_per_distinct_picture_of_a_generation(self, tiny_vlm, tmp_path):
        rows = demo_rows(3)
        rows = rows.select([0, 0, 1, 2])
        changes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_iterations": 1}
        changes |= {"rollout_prompts": 1, "max_steps": 1}
        trainer, _, calls = trained(tiny_vlm, tmp_path, rows=rows, **changes)
        assert len(trainer.generation.rollout.prompts) == 4 and len(calls) == 3

    def test_an_evaluation_runs_it_once_per_picture(self, tiny_vlm, tmp_path):
        trainer = vlm_trainer(tiny_vlm, tmp_path, eval_rows=demo_rows(2))
        calls = count_calls(trainer.model)
        trainer.evaluate()
        assert len(calls) == 2

    def test_features_are_freed_with_their_generation(self, tiny_vlm, tmp_path):
        trainer, _, _ = trained(tiny_vlm, tmp_path, max_steps=1)
        features = weakref.ref(trainer.generation.rollout.prompts[0].features["image"][0])
        assert features() is not None
        del trainer
        gc.collect()
        assert features() is None

    def test_pictures_that_tools_return(self, tiny_vlm, tmp_path, monkeypatch):
        """Equal boards of different branches are one call, and boards that end a branch are computed, too."""
        pytest.importorskip("gymnasium")
        act_by_text(monkeypatch)
        board, tasks = ["SFF", "FFF", "FFG"], load_tasks()
        draw(board, (0, 0)).save(tmp_path / "board.png")
        record = {"question_type": "gridworld", "question": "Go.", "answer": board, "image": "board.png"}
        rows = rows_from_records([record | {"id": str(i)} for i in range(2)], tasks, image_root=str(tmp_path))
        given = {"rows": rows, "method": "tree_grpo", "max_turn_length": 6, "max_observation_length": 60}
        given |= {"max_completion_length": 300, "num_iterations": 1, "max_steps": 1, "beta": 0.0}
        trainer, once, calls = trained(tiny_vlm, tmp_path / "once", **given)
        rollout = trainer.generation.rollout
        seen = [node.media for tree in rollout.trees for node in tree.nodes if node.media is not None]
        assert seen and len(calls) == len({key for item in [*rollout.prompts, *seen] for key in item.item_keys})
        without_features(monkeypatch)
        other, always, _ = trained(tiny_vlm, tmp_path / "always", **given)
        assert once.losses == pytest.approx(always.losses, abs=1e-6)
        assert largest_gap(weights(trainer), weights(other)) <= 1e-7
