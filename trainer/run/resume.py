"""Why a run cannot resume from a checkpoint, in words; and the settings of the run that override those in state files.

A state file is loaded as it is, so its settings would silently override the command line. Therefore each of them is
either compared before loading (optimiser, adapter, position in the data) or set again afterwards (schedule, intervals).
"""

from __future__ import annotations

import json
from pathlib import Path

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

LAYOUT = "layout.json"
# Settings stored in the files of the optimiser and the scheduler.
OPTIMIZER = (
    "optim", "optim_args", "optim_target_modules", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2",
    "adam_epsilon", "lr_scheduler_type", "lr_scheduler_kwargs",
)  # fmt: skip
RANDOM = ("seed", "data_seed")
ADAPTER = {"r": "lora_r", "lora_alpha": "lora_alpha", "use_rslora": "use_rslora", "use_dora": "use_dora"}  # key -> flag


def adapter_fault(checkpoint: str, adapters: dict) -> str | None:
    """How a checkpoint's adapter differs from the run's (name -> LoraConfig), in words; None if it does not."""
    saved = json.loads((Path(checkpoint) / "adapter_config.json").read_text(encoding="utf-8"))
    own = adapters["default"].to_dict()
    for name, flag in ADAPTER.items():
        there, here = saved.get(name), own.get(name)
        if there != here:
            return f"its adapter has {flag} {there}, and this run's {here}"
    for name, what in (("target_modules", "is on"), ("modules_to_save", "trains whole")):
        there, here = (names if isinstance(names, str) else set(names or ()) for names in (saved.get(name), own[name]))
        if there != here:
            return f"its adapter {what} other modules than this run's (lora_{name})"
    return None


def layout_fault(checkpoint: str, layout: dict) -> str | None:
    """Why a run with this layout cannot resume from a checkpoint, in words; None if it can.

    transformers would continue without Adam's moments, or fail with an error of a library.
    """
    folder = Path(checkpoint)
    if not any([*folder.glob("optimizer*"), *folder.glob("global_step*")]):
        return "it has no optimiser state: it was saved with save_only_model, or is the final model of a run"
    try:
        saved = json.loads((folder / LAYOUT).read_text(encoding="utf-8"))
    except FileNotFoundError:  # saved by another trainer: judge by its files
        if any(folder.glob("global_step*")) == (layout["zero_stage"] is not None):
            return None
        return "only one of the two is under DeepSpeed, so its optimiser state does not fit"
    if _words(saved) != _words(layout):
        return (
            f"it was saved by {_words(saved)}, and this run has {_words(layout)}, so its optimiser state does not fit"
        )
    here = json.loads(json.dumps(layout))  # in the form in which it is saved
    for part, sentence in {
        "optimizer": "its optimiser has {name} {there}, and this run's {here} would have no effect",
        "random": "its random states are of {name} {there}, and this run's {here} would have no effect",
        "data": "it was saved with {name} {there}, and with this run's {here} its step is another position in the data",
        "best": "its best evaluation is by {name} {there}, and this run's {here} cannot be compared with it",
    }.items():
        for name, value in saved.get(part, {}).items():
            unknown = part == "best" and None in (value, here[part][name])  # nothing to compare
            if value != here[part][name] and not unknown:
                return sentence.format(name=name, there=value, here=here[part][name])
    return None


class OwnIntervals(TrainerCallback):
    """The intervals of logging, evaluation and saving are this run's, not those of the checkpoint's state."""

    def on_train_begin(self, args, state, control, **kwargs):
        state.compute_steps(args, state.max_steps)


def follow_own_schedule(scheduler) -> None:
    """Sets the learning rates after loading to those of this run's schedule at the current step.

    The optimiser's file has the rate of the next step under the saved run's schedule: 0 at the end of a linear one.
    Only the rules are this run's own, so schedules with other settings in their state are compared beforehand.
    """
    schedule = getattr(scheduler, "scheduler", scheduler)
    if isinstance(schedule, LambdaLR):
        rules = zip(schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True)
        for group, base, rule in rules:
            group["lr"] = base * rule(schedule.last_epoch)
        schedule._last_lr = [group["lr"] for group in schedule.optimizer.param_groups]


def _words(layout: dict) -> str:
    count, stage = layout["processes"], layout["zero_stage"]
    sharding = "without DeepSpeed" if stage is None else f"under ZeRO-{stage}"
    return f"{count} process{'es' if count > 1 else ''} {'under FSDP' if layout.get('fsdp') else sharding}"
