"""What a step moves and what it leaves alone, packed and dense, from a fresh adapter and from a trained one."""

import copy
import json

import pytest
import torch
from trainer_cases import (
    demo_rows,
    length_reward,
    move,
    random_tree,
    script,
    settings,
    text_trainer,
    thought_tree,
    trainable,
    vlm_trainer,
    weights,
)

from dataset.dataset_grpo import rows_from_records
from model.loading import load_policy
from task.task_loader import load_tasks
from trainer.grpo_ma_trainer import GRPOMATrainer


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    random_tree.calls = 0
    script(monkeypatch, random_tree)


def moved(before: dict, after: dict) -> set[str]:
    return {name for name, weight in after.items() if not torch.equal(weight, before[name])}


def shapes(kwargs: dict) -> dict:
    return {name: tuple(value.shape) for name, value in kwargs.items() if isinstance(value, torch.Tensor)}


class TestOneStep:
    def test_lora_b_moves_first_lora_a_from_the_second_step_and_nothing_else_ever(self, tiny_vlm, tmp_path):
        """B starts at zero, so A's gradient is zero until B has moved."""
        trainer = vlm_trainer(tiny_vlm, tmp_path, max_steps=2)
        before, after_one = weights(trainer), {}
        step = trainer.training_step

        def training_step(*args, **kwargs):
            if trainer.state.global_step == 1:
                after_one.update(weights(trainer))
            return step(*args, **kwargs)

        trainer.training_step = training_step
        trainer.train()
        names = trainable(trainer)
        assert moved(before, after_one) == {name for name in names if ".lora_B." in name}
        assert moved(before, weights(trainer)) == names
        assert len(names) == 2 * 7 * trainer.model.config.text_config.num_hidden_layers
        assert not any("visual" in name for name in names)

    def test_full_fine_tuning_moves_every_language_weight_and_no_vision_weight(self, tiny_vlm, tmp_path):
        trainer = vlm_trainer(tiny_vlm, tmp_path, lora=False)
        before = weights(trainer)
        trainer.train()
        assert moved(before, weights(trainer)) == {name for name in before if "visual" not in name}

    def test_with_the_vision_tower_open_it_moves_too(self, tiny_vlm, tmp_path):
        trainer = vlm_trainer(tiny_vlm, tmp_path, lora=False, vision=True)
        before = weights(trainer)
        trainer.train()
        still = set(before) - moved(before, weights(trainer))
        assert still == set()

    def test_lora_on_the_vision_tower(self, tiny_vlm, tmp_path):
        trainer = vlm_trainer(tiny_vlm, tmp_path, vision=True, max_steps=2)
        before = weights(trainer)
        trainer.train()
        changed = moved(before, weights(trainer))
        assert any("visual" in name and "lora_A" in name for name in changed)
        assert all("lora_" in name for name in changed)


class TestPacked:
    @pytest.mark.parametrize("changes", [{}, {"max_slots": 120}, {"loss_type": "dapo", "beta": 0.04}])
    def test_three_steps_packed_and_dense_end_at_the_same_weights(self, tiny_vlm, tmp_path, changes):
        """120 slots hold less than the two pictures of a micro-batch: it is cut, and checkpointed."""
        ends = {}
        for sharing in ("on", "off"):
            random_tree.calls = 0
            given = {"max_steps": 3, "per_device_train_batch_size": 8, "prefix_sharing": sharing, **changes}
            if sharing == "off":
                given.pop("max_slots", None)  # which limits packed passes
            trainer = vlm_trainer(tiny_vlm, tmp_path / sharing, rows=6, learning_rate=0.1, **given)
            assert trainer.forward.sharing is (sharing == "on")
            start = weights(trainer)
            trainer.train()
            ends[sharing] = weights(trainer)
            assert max((ends[sharing][name] - start[name]).abs().max() for name in trainable(trainer)) > 1e-3
        gap = max((ends["on"][name] - ends["off"][name]).abs().max().item() for name in ends["on"])
        assert gap < 1e-5

    def test_a_model_that_packs_wrongly_stops_the_run(self, tiny_text, tmp_path, monkeypatch):
        """The start-up check computes the first rows both ways."""
        trainer = text_trainer(tiny_text, tmp_path)
        dense = trainer.forward.dense
        monkeypatch.setattr(trainer.forward, "dense", lambda *args: tuple(x + 0.01 for x in dense(*args)))
        with pytest.raises(RuntimeError, match=r"differ by at most 1\.0e-02.*--prefix_sharing off"):
            trainer.train()


class TestStart:
    def test_ratio_is_one_and_kl_zero_at_the_first_update_of_a_fresh_adapter(self, tiny_vlm, tmp_path):
        """Two prompts with different pictures; old, reference and policy pass must compute the very same thing."""
        changes = {"beta": 0.1, "num_iterations": 2, "per_device_train_batch_size": 8, "max_steps": 2}
        trainer = vlm_trainer(tiny_vlm, tmp_path, **changes)
        passes = []
        original = trainer._get_per_token_logps_and_entropies

        def log_probs(*args, **kwargs):
            result = original(*args, **kwargs)
            passes.append(result[0].detach().clone())
            return result

        trainer._get_per_token_logps_and_entropies = log_probs
        calls = []
        bare = trainer.model.get_base_model()
        bare.register_forward_pre_hook(lambda module, args, kwargs: calls.append(shapes(kwargs)), with_kwargs=True)
        trainer.train()
        old, reference, policy = passes[:3]
        assert (policy - old).exp().sub(1).abs().max() < 1e-5
        assert (policy - reference).abs().max() < 1e-5
        first = trainer.state.log_history[0]
        assert first["thought/kl"] < 1e-9
        assert first["answer/kl"] < 1e-9
        assert trainer.state.log_history[1]["thought/kl"] > first["thought/kl"]
        checked, dense, *rest = calls  # the start-up check, then old, reference and two policy passes
        assert len(rest) == 4
        assert all(call == checked for call in rest)
        assert checked["image_grid_thw"] == (2, 3)  # each picture once, not once a row
        assert dense["image_grid_thw"] == (8, 3)

    def test_log_probs_depend_on_the_picture(self, tiny_vlm, tmp_path, monkeypatch):
        """The same question and completion on two pictures: blind training would give equal log-probs."""
        tree = thought_tree("any", [[301, 302], [303]], [[[304], [305]], [[306], [307]]])
        script(monkeypatch, lambda prompt_id, policy: copy.deepcopy(tree))
        rows = demo_rows(2, question="Move the gripper to the red cone.")
        for sharing in ("on", "off"):
            changes = {"per_device_train_batch_size": 8, "num_iterations": 2, "prefix_sharing": sharing}
            trainer = vlm_trainer(tiny_vlm, tmp_path / sharing, rows=rows, **changes)
            trainer.train()
            old = trainer._buffered_inputs[0]["old_per_token_logps"]
            assert (old[:4] - old[4:]).abs().max() > 1e-2

    def test_rows_with_different_numbers_of_pictures_score_as_each_alone(self, tiny_vlm, tmp_path):
        """Through growth, micro-batches and both layouts, no row gets another's pictures."""
        pictures = [json.loads(row["record"])["images"][0] for row in demo_rows(6)]
        images = [pictures[:1], pictures[1:4], [], pictures[4:]]
        records = [
            {"id": f"mixed-{i}", "question": f"Question {i}?", "question_type": "trajectory-sharerobot", "answer": 0}
            | ({"image": paths} if paths else {})
            for i, paths in enumerate(images)
        ]
        rows = rows_from_records(records, load_tasks())
        changes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_iterations": 2}
        for sharing in ("on", "off"):
            trainer = vlm_trainer(tiny_vlm, tmp_path / sharing, rows=rows, prefix_sharing=sharing, **changes)
            trainer.train()
            assert [len(prompt.image_sizes) for prompt in trainer.generation.rollout.prompts] == [1, 3, 0, 2]
            seen = []
            for batch in trainer._buffered_inputs:
                for row, old in zip(batch["row_ids"].tolist(), batch["old_per_token_logps"], strict=True):
                    completion = trainer.generation.rollout.completion(row)
                    alone = self.alone(tiny_vlm, trainer.generation.rollout.prompts[row // 4], completion)
                    torch.testing.assert_close(old[: len(completion)], alone, atol=1e-4, rtol=0)
                    seen.append(row)
            assert sorted(seen) == list(range(16))

    @staticmethod
    def alone(tiny_vlm, prompt, completion):
        """Log-probs of one completion by one plain forward of the untrained model."""
        after = prompt.next_position + torch.arange(len(completion))
        with torch.no_grad():
            logits = tiny_vlm[1](
                input_ids=torch.tensor([prompt.ids + completion]),
                position_ids=torch.cat([prompt.position_ids, after.expand(3, -1)], dim=1)[:, None],
                **prompt.media,
            ).logits[0, len(prompt.ids) - 1 : -1]
        return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]

    def test_a_trained_adapter_is_trained_on_against_a_frozen_copy_of_itself(self, tiny_vlm, tmp_path):
        folder = tmp_path / "adapter"
        first = vlm_trainer(tiny_vlm, tmp_path / "first")
        move(first.model, 0.05)
        first.save_model(str(folder))

        module, model, processor = load_policy(
            first.model.peft_config["default"].base_model_name_or_path, str(folder), dtype="float32", trainable=True
        )

        trainer = GRPOMATrainer(
            model=model,
            module=module,
            processing_class=processor,
            reward_funcs=length_reward,
            args=settings(tmp_path / "second", beta=0.1, max_steps=2),
            train_dataset=demo_rows(2),
        )
        before = weights(trainer)
        assert any(".default." in name and before[name].abs().max() > 0 for name in trainable(trainer))
        trainer.train()
        assert trainer.state.log_history[0]["thought/kl"] < 1e-6
        assert trainer.state.log_history[1]["thought/kl"] > 0
        changed = moved(before, weights(trainer))
        assert changed == {name for name in before if ".default." in name}
