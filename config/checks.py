"""Checks of training settings: values that rollout trees do not support, that conflict, or that have no effect."""

from __future__ import annotations

from config.choices import check_choices
from config.foreign import check_foreign
from config.method_settings import check_at_least
from config.methods import SETTINGS
from config.ranges import check_ranges
from config.sampling_correction import check_sampling_correction
from config.unsupported import check_unsupported
from config.vllm_settings import check_vllm
from config.zero_spread import check_zero_spread
from task.errors import UserError
from trainer.logs.tree_log import parse_log_trees


def check_training(args) -> None:
    """Raises UserError, one sentence, for the first invalid setting of a GRPOConfig.

    Called before defaults are derived: None means that the default will be used.
    """
    rules = ("on_long_prompt", "on_bad_media", "on_non_finite", "on_zero_spread")
    check_choices(args, ("method", "shared_token_weight", "prefix_sharing", *rules))
    settings = SETTINGS[args.method]
    check_foreign(args)
    check_choices(args, settings.choices)
    check_at_least(args, settings.at_least)
    check_ranges(args)
    parse_log_trees(args.log_trees)
    settings.check(args)
    check_zero_spread(args, settings.extends)
    if args.use_vllm:
        check_sampling_correction(args)
    check_vllm(args)
    if args.remove_unused_columns:
        raise UserError("remove_unused_columns=True would drop the record the rewards read: leave it false")
    if args.warmup_ratio != 0:
        raise UserError(
            f"warmup_ratio={args.warmup_ratio} is not taken: set warmup_steps, a number of steps or, below 1, a share "
            "of them, for the learning rate; answer_warmup_steps is for steps with one answer per thought (grpo_ma)"
        )
    if args.warmup_steps and getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type) == "constant":
        raise UserError(
            f"warmup_steps={args.warmup_steps} would have no effect: lr_scheduler_type constant has no warm-up; set it "
            "to constant_with_warmup, or warmup_steps to 0"
        )
    if args.max_slots is not None and args.prefix_sharing == "off":
        raise UserError(
            f"max_slots={args.max_slots} limits packed forward passes, and prefix_sharing is off: leave max_slots out, "
            "or set prefix_sharing to auto"
        )
    check_unsupported(args, args.loss_type or settings.preset["loss_type"])
