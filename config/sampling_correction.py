"""Checks of TRL's `vllm_importance_sampling_*` settings, which bound the weight pi_trained / pi_sampled of a token."""

from __future__ import annotations

import math

from task.errors import UserError

MODES = ("token_truncate", "token_mask")
OF_SEQUENCES = ("sequence_truncate", "sequence_mask")


def check_sampling_correction(args) -> None:
    """Raises UserError for a correction that trees do not support or that has no meaning.

    Args:
        args: a GRPOConfig with `use_vllm`.
    """
    mode = args.vllm_importance_sampling_mode
    if mode in OF_SEQUENCES:
        raise UserError(
            f"vllm_importance_sampling_mode={mode} gives all tokens of a row one weight, so that a few tokens would "
            f"change or drop a whole branch of a tree: use {' or '.join(MODES)}"
        )
    if mode not in MODES:
        raise UserError(f"vllm_importance_sampling_mode={mode!r} is unknown: use {' or '.join(MODES)}")
    capped = args.vllm_importance_sampling_cap is not None  # TRL's older name of clip_max
    given = "vllm_importance_sampling_cap" if capped else "vllm_importance_sampling_clip_max"
    name, low, high = "vllm_importance_sampling_clip_min", args.vllm_importance_sampling_clip_min, getattr(args, given)
    if low is not None and not (low >= 0 and math.isfinite(low)):
        raise UserError(f"{name}={low} must be a finite number of at least 0: it bounds a ratio of probabilities")
    if high is not None and not (high > 0 and math.isfinite(high)):
        raise UserError(f"{given}={high} must be a finite number above 0: it bounds a ratio of probabilities")
    if low is not None and high is not None and low >= high:
        raise UserError(f"{name}={low} must be below {given}={high}")
    if args.vllm_importance_sampling_correction and mode == "token_truncate" and low is None and high is None:
        raise UserError(f"vllm_importance_sampling_mode=token_truncate has no bound: set {given}, or use token_mask")
