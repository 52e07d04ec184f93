"""What a run prints before its first step: the settings that matter, where each comes from, and one rendered prompt."""

from __future__ import annotations

import math
from collections.abc import Container

from config.methods import SETTINGS
from model.pixel_limits import size_of_pictures

SHARED = (
    "method", "num_generations", "max_completion_length", "max_prompt_length", "loss_type", "importance_sampling_level",
    "beta", "learning_rate", "temperature", "sync_prompt_across_ranks", "scale_rewards", "shared_token_weight",
    "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations",
    "prefix_sharing", "bf16", "use_cpu", "seed", "data_seed", "save_steps",
)  # fmt: skip


def print_run(model: str, data: list[str], args, rewards: dict[str, float], prompts: int) -> None:
    """Model, training data, output folder, length and reward weights: what a run is, one line each.

    Args:
        rewards: name of each reward function -> its weight.
        prompts: number of training prompts.
    """
    if args.max_steps > 0:
        steps = f"{args.max_steps:,}"
    else:
        steps = f"{steps_of_epochs(args, prompts):,} ({args.num_train_epochs:g} epochs of {prompts:,} prompts)"
    weights = ", ".join(f"{name} x {weight:g}" for name, weight in rewards.items())
    facts = {"model": model, "data": ", ".join(data), "output_dir": args.output_dir, "steps": steps, "rewards": weights}
    for name, value in facts.items():
        print(f"  {name:<28} {value}")


def steps_of_epochs(args, prompts: int) -> int:
    """Optimiser steps of `num_train_epochs` over so many prompts, of which an epoch uses whole generations."""
    together = args.prompts_per_generation * (1 if args.sync_prompt_across_ranks else args.world_size)
    return math.ceil(args.num_train_epochs * (prompts // together) * args.window)


def print_settings(args, provenance: dict[str, str], without: Container[str] = ()) -> None:
    """One line per setting, marked flag, recipe, preset, derived or default; `without`: settings left out."""
    names = (*SHARED[:1], *SETTINGS[args.method].shown, *SHARED[1:])
    for name in (name for name in names if name not in without):
        value = getattr(args, name)
        if name == "save_steps":  # transformers turns it into a float, and allows a share of the steps
            value = f"{value:g}"
        print(f"  {name:<28} {value!s:<12} {_source(args, name, provenance)}")
    if args.window > 1:
        print(f"  saves and evaluations wait for the end of a generation, which is used for {args.window} steps")


def print_model(report: dict[str, tuple[int, int]], dtype: str, attention: dict[str, str], processor) -> None:
    """Trainable and total parameters per tower, the dtype, each tower's attention, and the pixel budget of pictures."""
    for tower, (trainable, total) in report.items():
        share = f"{trainable / total:.2%}" if total else "-"
        print(f"  {tower:<28} {trainable:>13,} of {total:>13,} parameters train ({share})")
    print(f"  weights {dtype}, attention " + ", ".join(f"{name} ({tower})" for tower, name in attention.items()))
    part = getattr(processor, "image_processor", None)
    if part is not None:
        print(f"  pictures are {size_of_pictures(part)}")


def print_costs(unshared: str | None, forking: str | None) -> None:
    """What a model's layers cost beyond shared prefixes: why leaves train row by row, and what forks copy.

    Args:
        unshared: why prefixes are not shared in training, None if they are (`RowForward.unshared`).
        forking: `trainer.engines.batch_forward.forking_cost`.
    """
    if unshared is not None:
        print(f"  training computes every leaf's whole row: {unshared}")
    if forking is not None:
        print(f"  rollouts: {forking}")


def print_prompt(text: str, prompt) -> None:
    """One prompt as the chat template renders it, with its token count and pictures."""
    print(f"first prompt: {len(prompt.ids)} tokens, pictures {prompt.image_sizes} seen as {prompt.processed_sizes}")
    print("\n".join("  | " + line for line in text.splitlines()))


def _source(args, name: str, provenance: dict[str, str]) -> str:
    if name in provenance:
        return provenance[name]
    if name in args.from_preset:
        return f"preset of {args.method}"
    field = args.__dataclass_fields__[name]
    return "default" if getattr(args, name) == field.default else "derived"
