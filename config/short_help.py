"""`--help` of training on one page: the settings of the chosen method, the data and the model first."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap

from config.methods import SETTINGS

LINES = 80
NAME_WIDTH = 34
GROUPS = {
    "every method": (
        "num_generations", "max_completion_length", "learning_rate", "beta", "loss_type", "scale_rewards",
        "reward_weights", "temperature", "thought_end", "sync_prompt_across_ranks", "shared_token_weight",
    ),
    "data": (
        "dataset_name", "eval_dataset_name", "image_root", "task_dir", "extra_reward", "empty_thought",
        "max_prompt_length", "on_long_prompt", "on_bad_media",
    ),
    "model": (
        "model_name_or_path", "adapter_path", "use_peft", "lora_r", "lora_alpha", "lora_dropout", "freeze_vision",
        "lora_vision", "load_in_4bit", "dtype", "min_pixels", "max_pixels",
    ),
    "run": (
        "output_dir", "resume_from_checkpoint", "max_steps", "num_train_epochs", "learning_rate",
        "per_device_train_batch_size", "gradient_accumulation_steps", "lr_scheduler_type", "warmup_steps",
        "save_steps", "eval_strategy", "eval_steps", "logging_steps", "log_trees", "report_to", "max_slots",
        "gradient_checkpointing", "reward_timeout", "seed",
    ),
}  # fmt: skip


def short_help(parser: argparse.ArgumentParser, method: str | None) -> str:
    """At most `LINES` lines, one per setting: its name and the first sentence of its help.

    Args:
        method: whose own settings come first; None for a script without methods.
    """
    # A true default also has a `--no_` flag with the same dest and the default False: the setting itself comes first.
    actions = {action.dest: action for action in reversed(parser._actions)}
    width = min(max(shutil.get_terminal_size().columns, 80), 120)
    lines = [f"usage: {parser.prog} [--config RECIPE.yaml] [--SETTING VALUE ...] [--dry-run]"]
    groups = dict(GROUPS)
    if method in SETTINGS:
        fields = SETTINGS[method].fields
        own = ("method", *(fields.__dataclass_fields__ if fields else ()))
        groups = {f"method {method} (--method NAME --help for another: {', '.join(SETTINGS)})": own} | groups
    shown: set[str] = set()
    for title, names in groups.items():
        found = [name for name in names if name in actions and name not in shown]
        shown.update(found)
        if found:
            lines += ["", *textwrap.wrap(f"{title}:", width), *(_line(actions[name], method, width) for name in found)]
    lines += [
        "",
        "A name is followed by its default. --help all: every setting. --dry-run: check settings, start nothing.",
    ]
    return "\n".join(lines)


def _line(action: argparse.Action, method: str | None, width: int) -> str:
    text = " ".join((action.help or "").split())
    first = re.split(r"\.(?= |$)|(?<=\)); ", text)[0].removesuffix(f" ({method})")
    default = action.default if isinstance(action.default, str | int | float) and action.default != "" else ""
    name = f"  --{action.dest} {default}".rstrip()
    return f"{name:<{NAME_WIDTH}} " + textwrap.shorten(first, width - NAME_WIDTH - 1, placeholder=" ...")
