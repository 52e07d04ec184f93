"""Checkpoints: written completely or not at all, tied to a layout, and saved on a signal."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from paths import ROOT
from peft import LoraConfig
from trainer_cases import largest_gap, logged, text_rows, text_trainer, vlm_trainer, weights
from transformers import TrainerCallback

from config.output import checkpoint_to_resume
from trainer.run.checkpoints import CheckpointError, layout_fault, rotate

SAVING = {"save_strategy": "steps", "save_steps": 1, "save_only_model": False}


class At(TrainerCallback):
    """Does something at the end of a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action()


def test_a_checkpoint_appears_in_one_piece(tiny_text, tmp_path, monkeypatch):
    seen = []
    trainer = text_trainer(tiny_text, tmp_path, max_steps=2, **SAVING)
    original = trainer._save_rng_state

    def watch(folder):
        seen.append(sorted(path.name for path in tmp_path.glob("checkpoint-*")))
        original(folder)

    monkeypatch.setattr(trainer, "_save_rng_state", watch)
    trainer.train()
    assert seen == [[], ["checkpoint-1"]], "nothing under the final name while it is being written"
    assert not (tmp_path / ".incomplete").exists()
    assert checkpoint_to_resume("auto", str(tmp_path)) == str(tmp_path / "checkpoint-2")


def test_what_a_kill_left_behind_is_named_and_passed_over(tmp_path, capsys):
    (tmp_path / ".incomplete" / "checkpoint-5").mkdir(parents=True)
    assert checkpoint_to_resume("auto", str(tmp_path)) is None
    assert "checkpoint-5 is incomplete" in capsys.readouterr().err


def test_rotation_keeps_the_newest_and_the_state_names_final_places(tiny_text, tmp_path):
    text_trainer(tiny_text, tmp_path, max_steps=3, save_total_limit=2, **SAVING).train()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    assert ".incomplete" not in (tmp_path / "checkpoint-3" / "trainer_state.json").read_text()


def test_rotation_goes_by_step_whatever_was_written_into_a_checkpoint_later(tiny_text, tmp_path):
    """An evaluation writes into checkpoint-1 after checkpoint-2 was saved: 1 is still the older one."""
    trainer = text_trainer(tiny_text, tmp_path, max_steps=3, save_total_limit=2, **SAVING)
    now = time.time()

    def evaluated():
        (tmp_path / "checkpoint-1" / "eval").mkdir()
        os.utime(tmp_path / "checkpoint-1", (now + 60, now + 60))

    trainer.callback_handler.callbacks.insert(0, At(3, evaluated))
    trainer.train()
    assert saved_steps(tmp_path) == [2, 3]


@pytest.mark.parametrize(
    ("limit", "best", "left"),
    [
        (None, None, [1, 2, 9, 10, 11, 20]),
        (0, None, [1, 2, 9, 10, 11, 20]),
        (1, None, [11, 20]),
        (3, None, [9, 10, 11, 20]),
        (3, 2, [2, 10, 11, 20]),
        (1, 2, [2, 11, 20]),
        (2, 11, [10, 11, 20]),
        (2, 7, [10, 11, 20]),
        (9, 1, [1, 2, 9, 10, 11, 20]),
    ],
)
def test_what_rotation_leaves(tmp_path, limit, best, left):
    """The one just saved, the best, and the highest steps before it; those of a later step belong to another run."""
    for step in (20, 9, 1, 10, 2, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-best").mkdir()  # somebody else's
    moved = best and f"/somewhere/else/checkpoint-{best}"
    rotate(tmp_path / "checkpoint-11", limit, moved)
    (tmp_path / "checkpoint-best").rmdir()
    assert saved_steps(tmp_path) == left


def saved_steps(folder) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("asked", "saved"), [(0.2, [2, 4, 6, 8, 10]), (0.5, [6, 10]), (3, [4, 6, 10]), (4, [4, 8, 10])]
)
def test_a_save_waits_for_the_end_of_the_generation(tiny_text, tmp_path, asked, saved):
    changes = {"save_strategy": "steps", "save_steps": asked, "steps_per_generation": 2, "max_steps": 10}
    text_trainer(tiny_text, tmp_path, rows=8, **changes).train()
    assert saved_steps(tmp_path) == saved


@pytest.mark.parametrize("strategy", ["steps", "best"])
def test_the_best_model_is_one_that_was_saved(tiny_text, tmp_path, monkeypatch, strategy):
    """Evaluated and saved every 3 steps, with 2 steps per generation: both wait, so that the best can be loaded."""
    changes = {"save_strategy": strategy, "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3, "max_steps": 9}
    changes |= {"load_best_model_at_end": True, "metric_for_best_model": "a-task/accuracy", "steps_per_generation": 2}
    trainer = text_trainer(tiny_text, tmp_path, rows=8, eval_dataset=text_rows(2), **changes)
    accuracies, kept = iter([0.3, 0.5, 0.4]), {}

    def evaluate(**_):
        trainer.control.should_evaluate = False
        return {"eval_a-task/accuracy": next(accuracies)}

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    trainer.add_callback(At(6, lambda: kept.update(weights(trainer))))
    trainer.train()
    assert saved_steps(tmp_path) == ([4, 6, 9] if strategy == "steps" else [4, 6])
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-6")
    assert largest_gap(kept, weights(trainer)) == 0.0


def test_a_best_model_by_an_unknown_metric_is_a_sentence(tiny_text, tmp_path):
    changes = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, **SAVING}
    trainer = text_trainer(tiny_text, tmp_path, eval_dataset=text_rows(2), **changes,
                           metric_for_best_model="a/b", greater_is_better=True)  # fmt: skip
    trainer.evaluate = lambda **_: {"eval_a/accuracy": 0.5, "epoch": 1}
    with pytest.raises(ValueError, match="=a/b is not a metric of the evaluation, which reports a/accuracy"):
        trainer.train()


def test_a_run_that_goes_on_in_mid_generation_ends_generations_where_saves_fall(tiny_text, tmp_path):
    """A run of 3 steps leaves a generation of 2 half used; what goes on from it can be resumed like any other run."""
    changes = {"steps_per_generation": 2, "save_strategy": "steps", "save_steps": 2}
    text_trainer(tiny_text, tmp_path, rows=8, max_steps=3, **changes).train()
    grown, longer = [], text_trainer(tiny_text, tmp_path, rows=8, max_steps=7, **changes)
    original = longer._generate_and_score_completions
    longer._generate_and_score_completions = lambda rows: grown.append(longer.state.global_step) or original(rows)
    longer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert grown == [3, 4, 6]
    again = text_trainer(tiny_text, tmp_path / "again", rows=8, max_steps=7, **changes)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert largest_gap(weights(longer), weights(again)) == 0.0


def test_a_disk_that_fills_leaves_the_checkpoint_before(tiny_text, tmp_path, monkeypatch):
    trainer = text_trainer(tiny_text, tmp_path, max_steps=3, **SAVING)
    original = trainer._save_optimizer_and_scheduler

    def full(folder):
        if trainer.state.global_step == 2:
            raise OSError(28, "No space left on device")
        original(folder)

    monkeypatch.setattr(trainer, "_save_optimizer_and_scheduler", full)
    with pytest.raises(CheckpointError, match=r"checkpoint-2 could not be saved .*No space left.*checkpoint-1 can be"):
        trainer.train()
    assert not (tmp_path / ".incomplete").exists()
    assert checkpoint_to_resume("auto", str(tmp_path)) == str(tmp_path / "checkpoint-1")


def test_a_process_that_cannot_write_waits_for_no_other(tiny_text, tmp_path, monkeypatch):
    """The others may be in a barrier of the save, which it will never reach: it has to end, and they with it."""
    trainer = text_trainer(tiny_text, tmp_path, **SAVING)
    collectives = []
    for name in ("wait_for_everyone", "gather"):
        monkeypatch.setattr(trainer.accelerator, name, lambda *args: collectives.append(args))

    def full(*args):
        collectives.clear()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trainer, "_write", full)
    with pytest.raises(CheckpointError, match="No space left"):
        trainer._save_checkpoint(trainer.model, None)
    assert collectives == []


def test_a_disk_that_fills_at_the_very_end_is_a_sentence_too(tiny_text, tmp_path, monkeypatch):
    trainer = text_trainer(tiny_text, tmp_path, **SAVING)
    trainer.train()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trainer, "_save", full)
    with pytest.raises(CheckpointError, match=r"the trained model could not be saved .*No space.*checkpoint-1 can be"):
        trainer.save_final()


@pytest.mark.slow
def test_a_disk_that_really_fills(tmp_path):
    """A file system of 8 MB holds one checkpoint of the demo model, not two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=14m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs rights that are not there")
    try:
        flags = ["--max_steps", "3", "--per_device_train_batch_size", "16", "--save_strategy", "steps", "--save_steps"]
        command = [sys.executable, ROOT / "train.py", "--config", ROOT / "config/recipes/grpo_ma_demo.yaml"]
        command += [*flags, "1", "--output_dir", disk / "run"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 2, done.stderr[-2000:]
        assert "checkpoint-2 could not be saved" in done.stderr and "Traceback" not in done.stderr
        assert checkpoint_to_resume("auto", str(disk / "run")) == str(disk / "run" / "checkpoint-1")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


class TestWeights:
    """Of a vision-language model, whose weights are saved under other names than its modules have."""

    def test_all_weights_come_back(self, tiny_vlm, tmp_path):
        whole = vlm_trainer(tiny_vlm, tmp_path, lora=False, beta=0.04, max_steps=2, **SAVING)
        whole.train()
        resumed = vlm_trainer(tiny_vlm, tmp_path, lora=False, beta=0.04, max_steps=2, **SAVING)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
        assert largest_gap(weights(whole), weights(resumed)) == 0.0
        assert logged(resumed, "thought/kl")[-1] == logged(whole, "thought/kl")[-1] > 0, (
            "the reference is what the run began with"
        )

    @pytest.mark.parametrize("lora", [True, False])
    def test_the_best_ones_are_loaded(self, tiny_vlm, tmp_path, lora):
        trainer, best = vlm_trainer(tiny_vlm, tmp_path, lora=lora, max_steps=2, **SAVING), {}
        trainer.add_callback(At(1, lambda: best.update(weights(trainer))))
        trainer.train()
        assert largest_gap(best, weights(trainer)) > 0
        trainer.state.best_model_checkpoint = str(tmp_path / "checkpoint-1")
        trainer._load_best_model()
        assert largest_gap(best, weights(trainer)) == 0.0

    def test_dropout_draws_the_same_after_a_resume(self, tiny_text, tmp_path):
        module, model, _ = tiny_text
        changes = {"max_steps": 2, **SAVING}
        lora = LoraConfig(
            r=4, lora_dropout=0.2, target_modules=module.lora_target_modules(model), task_type="CAUSAL_LM"
        )
        whole = text_trainer(tiny_text, tmp_path, peft_config=lora, **changes)
        whole.train()
        resumed = text_trainer(tiny_text, tmp_path, peft_config=lora, **changes)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
        assert largest_gap(weights(whole), weights(resumed)) == 0.0


class TestLayout:
    def test_it_is_saved_and_fits_itself_only(self, tiny_text, tmp_path):
        trainer = text_trainer(tiny_text, tmp_path, **SAVING)
        trainer.train()
        checkpoint = str(tmp_path / "checkpoint-1")
        assert layout_fault(checkpoint, trainer.layout()) is None
        assert layout_fault(checkpoint, trainer.layout() | {"processes": 2, "zero_stage": 2}) == (
            "it was saved by 1 process without DeepSpeed, and this run has 2 processes under ZeRO-2, so its optimiser "
            "state does not fit"
        )
        sharded = trainer.layout() | {"fsdp": True}
        assert "and this run has 1 process under FSDP" in layout_fault(checkpoint, sharded)

    @pytest.mark.parametrize(
        ("name", "value"), [("optim", "adamw_torch"), ("learning_rate", 1e-3), ("weight_decay", 0.1)]
    )
    def test_settings_that_lie_in_the_optimisers_file_are_not_silently_the_old_ones(
        self, tiny_text, tmp_path, name, value
    ):
        text_trainer(tiny_text, tmp_path, **SAVING).train()
        fault = text_trainer(tiny_text, tmp_path, **SAVING, **{name: value}).resume_fault(
            str(tmp_path / "checkpoint-1")
        )
        assert fault.startswith(f"its optimiser has {name} ") and f"this run's {value} would have no effect" in fault

    def test_a_checkpoint_without_its_optimiser_is_not_gone_on_from(self, tiny_text, tmp_path):
        """transformers would begin with empty moments and a new schedule, in mid-run, and say nothing."""
        trainer = text_trainer(tiny_text, tmp_path, **SAVING | {"save_only_model": True})
        trainer.train()
        checkpoint = checkpoint_to_resume("auto", str(tmp_path))
        assert layout_fault(checkpoint, trainer.layout()).startswith("it has no optimiser state: it was saved with")

    def test_an_adapter_is_not_loaded_into_all_weights_nor_the_other_way_round(self, tiny_text, tmp_path):
        module, model, _ = tiny_text
        lora = LoraConfig(r=4, target_modules=module.lora_target_modules(model), task_type="CAUSAL_LM")
        whole = text_trainer(tiny_text, tmp_path / "all", **SAVING)
        adapter = text_trainer(tiny_text, tmp_path / "lora", peft_config=lora, **SAVING)
        for trainer in (whole, adapter):
            trainer.train()
            assert trainer.resume_fault(checkpoint_to_resume("auto", trainer.args.output_dir)) is None
        assert whole.resume_fault(str(tmp_path / "lora" / "checkpoint-1")) == (
            "it holds an adapter, and this run trains all weights (use_peft)"
        )
        assert "it holds all weights, and this run trains an adapter" in (
            adapter.resume_fault(str(tmp_path / "all" / "checkpoint-1"))
        )
        for changes, fault in (({"r": 8}, "its adapter has lora_r 4, and this run's 8"),
                               ({"lora_alpha": 32}, "its adapter has lora_alpha 8, and this run's 32"),
                               ({"use_dora": True}, "its adapter has use_dora False, and this run's True"),
                               ({"target_modules": ["q_proj"]}, "its adapter is on other modules")):  # fmt: skip
            other = text_trainer(tiny_text, tmp_path / "other", peft_config=dataclasses.replace(lora, **changes))
            assert fault in other.resume_fault(str(tmp_path / "lora" / "checkpoint-1"))

    def test_files_that_a_library_refuses_are_a_sentence(self, tiny_text, tmp_path):
        text_trainer(tiny_text, tmp_path, **SAVING).train()
        checkpoint = tmp_path / "checkpoint-1"
        for name in ("optimizer.pt", "model.safetensors"):
            whole = (checkpoint / name).read_bytes()
            (checkpoint / name).write_bytes(whole[: len(whole) // 2])
            trainer = text_trainer(tiny_text, tmp_path, max_steps=2, **SAVING)
            with pytest.raises(CheckpointError, match=r"checkpoint-1 cannot be loaded \(.*: its files are damaged, or"):
                trainer.train(resume_from_checkpoint=str(checkpoint))
            (checkpoint / name).write_bytes(whole)

    def test_another_trainers_checkpoint_shows_deepspeed_by_its_files(self, tmp_path):
        alone, sharded = {"processes": 1, "zero_stage": None}, {"processes": 2, "zero_stage": 2}
        (tmp_path / "optimizer.pt").touch()
        assert layout_fault(str(tmp_path), alone) is None
        assert "under DeepSpeed" in layout_fault(str(tmp_path), sharded)
        (tmp_path / "global_step3").mkdir()
        assert "under DeepSpeed" in layout_fault(str(tmp_path), alone)


def test_what_a_method_remembers_comes_back(tiny_text, tmp_path):
    trainer = text_trainer(tiny_text, tmp_path, **SAVING)
    trainer.memory["fork_entropy"] = 0.123456789
    trainer.train()
    again = text_trainer(tiny_text, tmp_path, max_steps=2, **SAVING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert again.memory == {"fork_entropy": 0.123456789}


@pytest.mark.parametrize("rule", ["entropy", "random"])
def test_a_resumed_run_forks_where_the_uninterrupted_one_does(tiny_text, tmp_path, rule):
    """The running threshold and the seed of random forks come back, beside Adam's moments."""
    changes = {"method": "tree_adv", "num_generations": 6, "num_trees": 2, "min_gap": 2, "max_completion_length": 12}
    changes |= {"fork_rule": rule, "max_steps": 4, "optim": "adamw_torch", "learning_rate": 1e-3, **SAVING}
    whole = text_trainer(tiny_text, tmp_path / "whole", **changes)
    whole.train()
    again = text_trainer(tiny_text, tmp_path / "again", **changes)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    trees = [[tree.nodes for tree in trainer.generation.rollout.trees] for trainer in (again, whole)]
    assert trees[0] == trees[1]
    assert logged(whole, "fork/count")[-1] > 0
    assert largest_gap(weights(whole), weights(again)) == 0.0


class TestSigterm:
    def test_it_saves_stops_and_the_resumed_run_equals_the_uninterrupted_one(self, tiny_text, tmp_path, capsys):
        before = signal.getsignal(signal.SIGTERM)
        whole = text_trainer(tiny_text, tmp_path / "whole", max_steps=3)
        whole.train()
        stopped = text_trainer(tiny_text, tmp_path / "run", max_steps=3)
        stopped.add_callback(At(1, lambda: None))
        stopped.callback_handler.callbacks.insert(0, At(1, lambda: os.kill(os.getpid(), signal.SIGTERM)))
        stopped.train()
        assert stopped.stopping.stopped and stopped.state.global_step == 1
        assert "SIGTERM: a checkpoint will be saved after the last step" in capsys.readouterr().out
        assert signal.getsignal(signal.SIGTERM) == before
        resumed = text_trainer(tiny_text, tmp_path / "run", max_steps=3)
        resumed.train(resume_from_checkpoint=checkpoint_to_resume("auto", str(tmp_path / "run")))
        assert largest_gap(weights(whole), weights(resumed)) == 0.0

    def test_a_half_used_generation_is_finished_first(self, tiny_text, tmp_path):
        trainer = text_trainer(tiny_text, tmp_path, rows=8, max_steps=6, steps_per_generation=2)
        trainer.callback_handler.callbacks.insert(0, At(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
        trainer.train()
        assert trainer.state.global_step == 4 and (tmp_path / "checkpoint-4" / "trainer_state.json").exists()
        assert json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())["global_step"] == 4
