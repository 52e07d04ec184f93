"""The model card of a run: base model, method, data, settings and scores, as README.md beside the weights."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

# Besides the method's own settings.
LIBRARY_SETTINGS = (
    "learning_rate", "lr_scheduler_type", "optim", "weight_decay", "max_grad_norm", "per_device_train_batch_size",
    "gradient_accumulation_steps", "num_iterations", "loss_type", "beta", "epsilon", "epsilon_high", "scale_rewards",
    "temperature", "num_generations", "max_completion_length", "reward_weights", "seed", "bf16", "fp16",
)  # fmt: skip
VERSIONS = ("torch", "transformers", "trl", "peft", "deepspeed")


def model_card(trainer, model_name: str | None, dataset_name: str | None, tags: list[str]) -> ModelCard:
    """The card of a trainer's weights as they are now; scores are those of its last evaluation and last logged step."""
    args, state = trainer.args, trainer.state
    method = getattr(args, "method", "sft")  # a warm start has no method
    base, adapter = trainer.model.config._name_or_path, hasattr(trainer.model, "peft_config")
    data = ModelCardData(
        base_model=base or None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="image-text-to-text" if hasattr(trainer.model.config, "vision_config") else "text-generation",
        tags=sorted({*getattr(trainer, "_tag_names", ()), method, *tags}),
    )
    what = "A LoRA adapter" if adapter else "Full weights"
    parts = [
        f"---\n{data.to_yaml()}\n---",
        f"# {model_name or Path(args.output_dir).resolve().name}",
        f"{what} for `{base}`, trained with method `{method}` of GRPO-MA"
        + (f" on `{dataset_name}`" if dataset_name else "")
        + f": {state.global_step} optimiser steps on {args.world_size} process(es).",
        "## Scores",
        _table("metric", scores(state.log_history)),
        "## Settings",
        _table("setting", settings(args)),
        "## Versions",
        ", ".join(f"{name} {version(name)}" for name in VERSIONS),
    ]
    return ModelCard("\n\n".join(parts) + "\n", ignore_metadata_errors=True)


def settings(args) -> dict[str, object]:
    """Name -> value of the settings that decide what is learnt, as far as they are set."""
    length = "max_steps" if args.max_steps > 0 else "num_train_epochs"
    library = {name: getattr(args, name, None) for name in (length, *LIBRARY_SETTINGS)}
    values = getattr(args, "method_settings", {}) | library
    return {name: value for name, value in values.items() if value not in (None, False, [], {})}


def scores(history: list[dict]) -> dict[str, float]:
    """Metric -> value of the last evaluation, and the reward of the last logged training step."""
    evaluations = [entry for entry in history if any(name.startswith("eval_") for name in entry)]
    trained = [entry["reward"] for entry in history if "reward" in entry]
    timings = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")
    found = {
        name: value
        for name, value in (evaluations[-1] if evaluations else {}).items()
        if name.startswith("eval_") and name not in timings
    }
    return found | ({"reward of the last logged training step": trained[-1]} if trained else {})


def _table(head: str, values: dict[str, object]) -> str:
    if not values:
        return "none were measured"
    rows = [f"| {name} | {_text(value)} |" for name, value in values.items()]
    return "\n".join([f"| {head} | value |", "| --- | --- |", *rows])


def _text(value) -> str:
    shown = f"{value:.4g}" if isinstance(value, float) else str(getattr(value, "value", value))
    return shown.replace("|", "\\|").replace("\n", " ")
