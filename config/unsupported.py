"""Refuses settings of TRL, transformers and accelerate that rollout trees do not support or that have no effect."""

from __future__ import annotations

from typing import Any

from config.foreign import default_of
from task.errors import UserError

# Supported values, the default first; messages name those of the default's type, which flags can set.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "loss_type": (None, "grpo", "dapo", "dr_grpo", "cispo", "bnpo", "sapo"),
    "importance_sampling_level": (None, "token", "sequence"),
    "scale_rewards": (None, "group", "batch", "none"),
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
    "neftune_noise_alpha": (None,),
    "label_smoothing_factor": (0.0,),
    "train_sampling_strategy": ("random",),
    "cast_lm_head_to_fp32": (False,),
    "torch_compile": (False,),
    "torch_compile_backend": (None,),
    "torch_compile_mode": (None,),
    "parallelism_config": (None,),
    "auto_find_batch_size": (False,),
    "include_num_input_tokens_seen": ("no", False),
}

_EVALUATION = "evaluation completes the held-out prompts and scores them with the tasks' metrics"

# Fields without effect in a run on trees, and the reason.
IDLE: dict[str, str] = {
    "max_tool_calling_iterations": "the turns of an agent are limited by max_turns (tree_grpo)",
    "log_multimodal": "completions are logged without their pictures",
    "ref_model_mixup_alpha": "the reference model does not move (sync_ref_model)",
    "ref_model_sync_steps": "the reference model does not move (sync_ref_model)",
    "entropy_coef_min": "there is no entropy bonus (entropy_coef)",
    "entropy_coef_max": "there is no entropy bonus (entropy_coef)",
    "entropy_coef_delta": "there is no entropy bonus (entropy_coef)",
    "entropy_target": "there is no entropy bonus (entropy_coef)",
    **dict.fromkeys(
        ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"), "loss_type vespo is not supported"
    ),
    "transformers_continuous_batching_config": "rollouts are not sampled by continuous batching",
    **dict.fromkeys(
        (
            "bf16_full_eval", "fp16_full_eval", "prediction_loss_only", "eval_do_concat_batches",
            "eval_use_gather_object", "eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics",
        ),
        _EVALUATION,
    ),
    "label_names": "rows have no labels",
    "length_column_name": "prompts are not grouped by length (train_sampling_strategy)",
    "use_cache": "the engine keeps its own keys and values",
    "enable_jit_checkpoint": "SIGTERM saves a checkpoint already",
}  # fmt: skip

# Fields -> the losses that use them.
_CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo")
OF_LOSSES: dict[str, tuple[str, ...]] = {
    "sapo_temperature_neg": ("sapo",),
    "sapo_temperature_pos": ("sapo",),
    "delta": _CLIPPED,
    "epsilon": (*_CLIPPED, "cispo"),  # cispo's bound is epsilon_high, epsilon where that is left out
    "epsilon_high": (*_CLIPPED, "cispo"),
}

# Fields of accelerator_config -> why they are not supported.
ACCELERATOR = {
    "split_batches": "each process would get a part of a batch, and train on as many prompts less",
    "dispatch_batches": "a prompt is not a tensor, so one process could not send it to the others",
    "gradient_accumulation_kwargs": "set gradient_accumulation_steps instead",
}


def check_unsupported(args, loss_type: str) -> None:
    """Raises UserError for the first setting that a run on trees does not support or does not read.

    Args:
        args: a GRPOConfig whose defaults are not derived yet.
        loss_type: of the run.
    """
    for name, supported in SUPPORTED.items():
        if getattr(args, name) not in supported:
            kind = type(supported[0]) if supported[0] is not None else object
            choices = " or ".join(repr(value) for value in supported if value is not None and isinstance(value, kind))
            raise UserError(
                f"{name}={getattr(args, name)!r} is not supported with rollout trees: "
                + (f"use {choices}" if choices else "leave it out")
            )
    fields = args.__dataclass_fields__
    for name, instead in IDLE.items():
        if getattr(args, name) != default_of(fields[name]):
            raise UserError(f"{name}={getattr(args, name)!r} would have no effect: {instead}; leave {name} out")
    for name, losses in OF_LOSSES.items():
        if loss_type not in losses and getattr(args, name) != fields[name].default:
            raise UserError(
                f"{name}={getattr(args, name)!r} would have no effect: loss_type {loss_type} does not read it, but "
                f"{', '.join(losses)} do{'es' if len(losses) == 1 else ''}; leave it out"
            )


def check_accelerator(config) -> None:
    """Raises UserError for the first setting of an AcceleratorConfig that is not supported with trees."""
    for name, reason in ACCELERATOR.items():
        if getattr(config, name):
            raise UserError(
                f"accelerator_config: {name}={getattr(config, name)!r} is not supported ({reason}): leave it out"
            )
