"""Why a run cannot go on from a checkpoint, in words: another adapter, other processes, another optimiser."""

from __future__ import annotations

import json
from pathlib import Path

LAYOUT = "layout.json"
OPTIMIZER = ("optim", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")  # come from its file
ADAPTER = {"r": "lora_r", "lora_alpha": "lora_alpha", "use_rslora": "use_rslora", "use_dora": "use_dora"}  # with flags


def adapter_fault(checkpoint: str, adapters: dict) -> str | None:
    """In what a checkpoint's adapter differs from the run's (name -> LoraConfig), in words; None if in nothing."""
    saved = json.loads((Path(checkpoint) / "adapter_config.json").read_text(encoding="utf-8"))
    own = adapters["default"].to_dict()
    for name, flag in ADAPTER.items():
        there, here = saved.get(name), own.get(name)
        if there != here:
            return f"its adapter has {flag} {there}, and this run's {here}"
    modules = [saved["target_modules"], own["target_modules"]]
    there, here = (names if isinstance(names, str) else set(names or ()) for names in modules)
    return None if there == here else "its adapter is on other modules than this run's (lora_target_modules)"


def layout_fault(checkpoint: str, layout: dict) -> str | None:
    """Why a run cannot go on from a checkpoint under `layout`, in words; None if it can.

    transformers would go on without Adam's moments, or end in an error of a library.
    """
    folder = Path(checkpoint)
    if not any([*folder.glob("optimizer*"), *folder.glob("global_step*")]):
        return "it has no optimiser: it was saved with save_only_model, or is the end of a run"
    try:
        saved = json.loads((folder / LAYOUT).read_text(encoding="utf-8"))
    except FileNotFoundError:  # of another trainer: only what the files show
        if any(folder.glob("global_step*")) == (layout["zero_stage"] is not None):
            return None
        return "one of the two is under DeepSpeed and the other is not, so its optimiser does not fit"
    if _words(saved) != _words(layout):
        return f"it was saved by {_words(saved)}, and this run has {_words(layout)}, so its optimiser does not fit"
    there, here = saved.get("optimizer", {}), layout["optimizer"]
    changed = next((name for name in there if there[name] != here[name]), None)
    return changed and f"its optimiser has {changed} {there[changed]}, and this run's {here[changed]} would not count"


def _words(layout: dict) -> str:
    count, stage = layout["processes"], layout["zero_stage"]
    sharding = "without DeepSpeed" if stage is None else f"under ZeRO-{stage}"
    return f"{count} process{'es' if count > 1 else ''} {'under FSDP' if layout.get('fsdp') else sharding}"
