"""Checkpoints that are written completely or not at all, and that record the layout of their run.

A checkpoint is written under `.incomplete/` and renamed once every process has written its part, so that a killed run
never leaves an incomplete `checkpoint-N`. Besides TRL's files it contains `layout.json` (the processes, the sharding
and the optimiser of its states) and `method_memory.json` (what a method remembers between batches).
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from model.quantised import in_words, quantisation_of, save_quantisation, saved_quantisation
from task.errors import UserError
from trainer.run.model_card import model_card
from trainer.run.output_folder import check_unused
from trainer.run.resume import LAYOUT, OPTIMIZER, RANDOM, OwnIntervals, adapter_fault, follow_own_schedule, layout_fault
from trainer.swapped import swapped

INCOMPLETE = ".incomplete"
SAVED_SETTINGS = {"optimizer": OPTIMIZER, "random": RANDOM, "best": ("metric_for_best_model",)}
MEMORY = "method_memory.json"


class CheckpointError(UserError):
    """A checkpoint that could not be written or read; the message gives the reason and the remaining checkpoints."""


class WholeCheckpoints:
    """The part of a Trainer that saves and restores; a base class placed before the library's.

    transformers saves weights under the hub's names but would load them by the modules' names: for a vision-language
    model it finds none, and silently continues with the initial weights of the run. So full weights are loaded here.

    Attributes:
        memory: what is kept beside the library's state, JSON.
        module: the model family's `VLMModule`.

    `args.data_order` holds the settings from which the place of a step in the data follows.
    """

    memory: dict
    _saving = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(OwnIntervals())

    def train(self, resume_from_checkpoint=None, **kwargs):
        if not resume_from_checkpoint and self.state.global_step == 0:
            with self.args.main_process_first(local=False):  # no process writes before all have looked
                check_unused(
                    self.args.output_dir, "name another output_dir, remove the folder, or pass resume_from_checkpoint"
                )
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _get_output_dir(self, trial=None) -> str:
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, INCOMPLETE) if self._saving else folder

    def _save_checkpoint(self, model, trial):
        output, main = Path(super()._get_output_dir(trial)), self.accelerator.is_main_process
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        written, place = output / INCOMPLETE / name, output / name
        if main:
            shutil.rmtree(output / INCOMPLETE, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            self._write(model, trial, written, place)
        except Exception as error:  # safetensors and pickle report a full disk with their own classes
            # Raise at once: the other processes may wait in a collective of the save until this one exits.
            shutil.rmtree(output / INCOMPLETE, ignore_errors=True)
            raise _cannot_save(name, output, f"{type(error).__name__}: {error}") from error
        self.accelerator.wait_for_everyone()
        if main:
            if place.exists():  # of a run that was resumed from before it
                shutil.rmtree(place)
            written.rename(place)
            (output / INCOMPLETE).rmdir()
            rotate(place, self.args.save_total_limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        save_quantisation(self.model, output_dir or self.args.output_dir)

    def create_model_card(self, model_name=None, dataset_name=None, tags=None) -> None:
        """Writes the run's card (trainer/run/model_card.py) as README.md into output_dir."""
        if self.is_world_process_zero():
            tags = [tags] if isinstance(tags, str) else list(tags or [])
            model_card(self, model_name, dataset_name, tags).save(Path(self.args.output_dir) / "README.md")

    def save_final(self, dataset_name: str | None = None) -> None:
        """Writes the trained model, its card and the trainer's state into output_dir.

        Raises:
            CheckpointError: they could not be written.
        """
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is None and self.args.should_save:
            print("load_best_model_at_end: no evaluated step was saved, so the weights are those of the last step")
        try:
            self.save_model()
            self.save_state()
            self.create_model_card(dataset_name=dataset_name)
        except Exception as error:
            raise _cannot_save(
                "the trained model", Path(self.args.output_dir), f"{type(error).__name__}: {error}"
            ) from error

    def _write(self, model, trial, written: Path, place: Path) -> None:
        with swapped(self, _saving=True):
            super()._save_checkpoint(model, trial)
        if self.state.best_model_checkpoint == str(written):
            self.state.best_model_checkpoint = str(place)
        if self.accelerator.is_main_process:
            self.state.save_to_json(str(written / "trainer_state.json"))
            (written / LAYOUT).write_text(json.dumps(self.layout()), encoding="utf-8")
            (written / MEMORY).write_text(json.dumps(self.memory), encoding="utf-8")
            model_card(self, None, None, []).save(written / "README.md")

    def layout(self) -> dict:
        """How the optimiser and random states of a checkpoint are split, and the settings that they contain."""
        plugin = self.accelerator.state.deepspeed_plugin if self.is_deepspeed_enabled else None
        known = {"processes": self.accelerator.num_processes, "zero_stage": plugin and plugin.zero_stage}
        settings = self.args.to_dict()
        known |= {part: {name: settings[name] for name in names} for part, names in SAVED_SETTINGS.items()}
        known |= {"data": {"training records": len(self.train_dataset), **self.args.data_order}}
        return known | ({"fsdp": True} if self.is_fsdp_enabled else {})

    def resume_fault(self, checkpoint: str) -> str | None:
        """Why this run cannot resume from a checkpoint, in words; None if it can."""
        saved, wanted = (Path(checkpoint) / "adapter_config.json").exists(), hasattr(self.model, "peft_config")
        if saved != wanted:
            words = {True: "an adapter", False: "all weights"}
            return f"it holds {words[saved]}, and this run trains {words[wanted]} (use_peft)"
        fault = adapter_fault(checkpoint, self.model.peft_config) if saved else None
        there, here = (in_words(known) for known in (saved_quantisation(checkpoint), quantisation_of(self.model)))
        if there != here:
            fault = f"its adapter was trained on {there}, and this run has {here} (load_in_4bit, load_in_8bit)"
        return fault or layout_fault(checkpoint, self.layout())

    def _determine_best_metric(self, metrics, trial):
        name = self.args.metric_for_best_model
        known = [metric.removeprefix("eval_") for metric in metrics if "/" in metric]
        if name is not None and name.removeprefix("eval_") not in known:
            raise UserError(
                f"metric_for_best_model={name} is not a metric of the evaluation, which reports {', '.join(known)}"
            )
        if self.args.save_strategy != SaveStrategy.BEST and not self.control.should_save:
            return False  # the weights of this step are not kept: they cannot be loaded at the end
        return super()._determine_best_metric(metrics, trial)

    def _load_from_checkpoint(self, checkpoint, model=None):
        with _as_one_sentence(checkpoint):
            if not self._load_all_weights(checkpoint):
                super()._load_from_checkpoint(checkpoint, model)

    def _load_best_model(self):
        if not self._load_all_weights(self.state.best_model_checkpoint):
            super()._load_best_model()

    def _load_all_weights(self, checkpoint: str) -> bool:
        """Loads a full model; returns False for adapters and for the own formats of DeepSpeed and FSDP."""
        if hasattr(self.model, "peft_config") or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return False
        trusted = getattr(self.args, "trust_remote_code", False)
        saved = self.module.load_model(checkpoint, "float32", trust_remote_code=trusted)
        self.model.load_state_dict(saved.state_dict())
        return True

    def _load_optimizer_and_scheduler(self, checkpoint):
        with _as_one_sentence(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)
            if checkpoint is not None:
                follow_own_schedule(self.lr_scheduler)
        if checkpoint is not None and (Path(checkpoint) / MEMORY).exists():
            self.memory.update(json.loads((Path(checkpoint) / MEMORY).read_text(encoding="utf-8")))


def rotate(newest: Path, limit: int | None, best: str | None) -> None:
    """Removes the checkpoints of the lowest steps until `limit` are left; `newest` and `best` always stay.

    The step of the name counts, not the time of the files: an evaluation writes into an old checkpoint. Checkpoints
    of later steps are those of another run, and stay.
    """
    if not limit or limit < 0:
        return
    step = {path: path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for path in newest.parent.glob("checkpoint-*")}
    step = {path: int(number) for path, number in step.items() if number.isdecimal()}
    earlier = sorted((path for path in step if step[path] < step[newest]), key=step.__getitem__)
    others = [path for path in earlier if best is None or path.name != Path(best).name]
    room = max(limit - 1 - (len(earlier) - len(others)), 0)
    for path in others[: max(len(others) - room, 0)]:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _as_one_sentence(checkpoint: str | None):
    """Turns a library's error about a damaged or mismatched file into a CheckpointError."""
    try:
        yield
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(
            f"{checkpoint} cannot be loaded ({why[:300]}): its files are damaged, or this run trains another model or "
            "other parts of it; resume with its original settings, or from an earlier checkpoint"
        ) from error


def _cannot_save(what: str, output: Path, why: str) -> CheckpointError:
    kept = sorted(path.name for path in output.glob(f"{PREFIX_CHECKPOINT_DIR}-*"))
    return CheckpointError(
        f"{what} could not be saved in {output} ({why}): make room or name another output_dir; "
        + (f"{', '.join(kept)} can be resumed" if kept else "there is no earlier checkpoint")
    )


class SaveAtWindowEnd(TrainerCallback):
    """Delays a save until the current generation is used up, because a checkpoint contains no rollouts.

    Evaluations are delayed too, so that the best one belongs to a checkpoint. The end of a run is not delayed.
    """

    def __init__(self):
        self.waiting = {"should_save": False, "should_evaluate": False}

    def on_step_end(self, args, state, control, **kwargs):
        ends = state.global_step % args.window == 0 or control.should_training_stop
        for name, waits in self.waiting.items():
            wanted = getattr(control, name) or waits
            setattr(control, name, wanted and ends)
            self.waiting[name] = wanted and not ends

    on_epoch_end = on_step_end
