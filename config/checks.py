"""What a run on rollout trees cannot work with: settings that contradict each other, or that would do nothing."""

from __future__ import annotations

from typing import Any

from config.choices import check_choices
from config.ranges import check_ranges
from config.tree_adv_arguments import check_tree_adv
from config.tree_grpo_arguments import check_tree_grpo
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
    """Raises ValueError, one sentence, for the first setting of a GRPOConfig that cannot work.

    Called before defaults are derived: None stands for a setting that is left to them.
    """
    rules = ("on_long_prompt", "on_bad_media", "on_non_finite")
    check_choices(args, ("method", "objective", "shared_token_weight", "prefix_sharing", *rules))
    check_ranges(args)
    parse_log_trees(args.log_trees)
    if args.method == "tree_grpo":
        check_tree_grpo(args)
    if args.method == "tree_adv":
        check_tree_adv(args)
    if args.method == "grpo_ma" and args.think_num * args.answer_num < 2:
        raise ValueError(
            "think_num=1 and answer_num=1 give a group of one completion, which has no advantage: set think_num or "
            "answer_num to at least 2"
        )
    if args.answer_warmup_steps and args.think_num < 2:
        raise ValueError(
            f"answer_warmup_steps={args.answer_warmup_steps} trains on think_num={args.think_num} chains a prompt, "
            "which have no advantage: set think_num to at least 2, or answer_warmup_steps to 0"
        )
    if args.use_vllm:
        raise ValueError(
            "use_vllm=True: trees are grown by the transformers engine, which forks the KV cache; set it to false"
        )
    if args.remove_unused_columns:
        raise ValueError("remove_unused_columns=True would drop the record the rewards read: leave it false")
    for name, supported in SUPPORTED.items():
        if getattr(args, name) not in supported:
            choices = " or ".join(repr(value) for value in supported if value is not None)
            raise ValueError(
                f"{name}={getattr(args, name)!r} is not supported with rollout trees: "
                + (f"use {choices}" if choices else "leave it out")
            )
    if args.shared_token_weight == "once" and args.method == "grpo_ma":
        raise ValueError(
            "shared_token_weight=once is for methods whose rows share tokens in one term; grpo_ma counts each "
            "thought once already: leave it out"
        )
    joint_tree = args.method == "grpo_ma" and args.objective == "joint" and args.answer_num > 1
    if args.importance_sampling_level == "sequence" and joint_tree:
        raise ValueError(
            "importance_sampling_level='sequence' averages the advantages of a thought and its answer away when "
            "objective is 'joint': set objective to split, or importance_sampling_level to token"
        )
