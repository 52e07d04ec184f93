"""Checks of training settings: values that rollout trees do not support, that conflict, or that have no effect."""

from __future__ import annotations

from typing import Any

from config.choices import check_choices
from config.method_settings import check_at_least
from config.methods import SETTINGS
from config.ranges import check_ranges
from task.errors import UserError
from trainer.logs.tree_log import parse_log_trees

SUPPORTED: dict[str, tuple[Any, ...]] = {
    "loss_type": (None, "grpo", "dapo", "dr_grpo", "cispo", "bnpo", "sapo"),
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": ("group", True),
    "multi_objective_aggregation": ("sum_then_normalize",),
    "off_policy_mask_threshold": (None,),
    "top_entropy_quantile": (1.0,),
    "entropy_coef": (0.0,),
    "use_adaptive_entropy": (False,),
    "ds3_gather_for_generation": (True,),
    "sync_ref_model": (False,),
    "router_aux_loss_coef": (0.0,),
    "generation_kwargs": (None,),
    "use_transformers_continuous_batching": (False,),
    "use_transformers_paged": (False,),
    "cache_implementation": (None,),
    "num_generations_eval": (None, 1),
    "model_init_kwargs": (None,),
    "chat_template_kwargs": (None,),
    "neftune_noise_alpha": (None,),
    "label_smoothing_factor": (0.0,),
    "train_sampling_strategy": ("random",),
    "cast_lm_head_to_fp32": (False,),
    "torch_compile": (False,),
    "torch_compile_backend": (None,),
    "torch_compile_mode": (None,),
}


def check_training(args) -> None:
    """Raises UserError, one sentence, for the first invalid setting of a GRPOConfig.

    Called before defaults are derived: None means that the default will be used.
    """
    rules = ("on_long_prompt", "on_bad_media", "on_non_finite")
    check_choices(args, ("method", "shared_token_weight", "prefix_sharing", *rules))
    for settings in SETTINGS.values():
        check_choices(args, settings.choices)
        check_at_least(args, settings.at_least)
    check_ranges(args)
    parse_log_trees(args.log_trees)
    SETTINGS[args.method].check(args)
    if args.use_vllm:
        raise UserError(
            "use_vllm=True: trees are grown by the transformers engine, which forks the KV cache; set it to false"
        )
    if args.remove_unused_columns:
        raise UserError("remove_unused_columns=True would drop the record the rewards read: leave it false")
    for name, supported in SUPPORTED.items():
        if getattr(args, name) not in supported:
            choices = " or ".join(repr(value) for value in supported if value is not None)
            raise UserError(
                f"{name}={getattr(args, name)!r} is not supported with rollout trees: "
                + (f"use {choices}" if choices else "leave it out")
            )
