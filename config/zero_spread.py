"""Settings for prompts whose rewards are all equal: train on them, replace them, or sample further answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from task.errors import UserError

MAX_REDRAWS, GROW_BUDGET = 3, 0.1


@dataclass
class ZeroSpreadFields:
    """Fields of every method; `GRPOConfig` inherits them."""

    on_zero_spread: str = field(
        default="keep",
        metadata={
            "help": "Prompts whose rewards do not differ, which give no gradient: keep trains on them; redraw replaces "
            "them by other prompts of the dataset before the update; grow samples further answers below their "
            "thoughts (grpo_ma).",
            "choices": ["keep", "redraw", "grow"],
        },
    )
    max_redraws: int = field(
        default=MAX_REDRAWS,
        metadata={
            "help": "Rounds of on_zero_spread redraw per generation. Prompts without signal after the last one are "
            "trained on and counted (redraw/left)."
        },
    )
    keep_between: list[float] | None = field(
        default=None,
        metadata={
            "help": "LOW HIGH: with on_zero_spread redraw, also replace prompts whose mean reward is outside of these "
            "bounds, such as 0.01 0.99. Default: no bounds."
        },
    )
    grow_budget: float = field(
        default=GROW_BUDGET,
        metadata={
            "help": "Further answers of on_zero_spread grow per generation, as a share of its leaves over all "
            "processes."
        },
    )

    @property
    def further_answers(self) -> int:
        """Budget of on_zero_spread grow: answers per generation over all processes."""
        return math.floor(self.grow_budget * self.leaves * self.prompts_per_generation * self.world_size + 1e-9)


def check_zero_spread(args, extends: bool) -> None:
    """Raises UserError, one sentence, for settings of a GRPOConfig that have no effect or exclude each other.

    `extends`: of the method's `MethodSettings`.
    """
    mode = args.on_zero_spread
    for name, unset, owner in (
        ("max_redraws", MAX_REDRAWS, "redraw"),
        ("keep_between", None, "redraw"),
        ("grow_budget", GROW_BUDGET, "grow"),
    ):
        if mode != owner and getattr(args, name) != unset:
            raise UserError(
                f"{name}={getattr(args, name)} would have no effect with on_zero_spread={mode}: leave it out, or set "
                f"on_zero_spread to {owner}"
            )
    if args.max_redraws < 1:
        raise UserError(
            f"max_redraws={args.max_redraws} must be at least 1: to keep all prompts, leave on_zero_spread out"
        )
    _check_bounds(args.keep_between)
    if not 0 < args.grow_budget <= 1:
        raise UserError(f"grow_budget={args.grow_budget} must be a share of the leaves, above 0 and at most 1")
    if mode == "grow" and not extends:
        raise UserError(
            f"on_zero_spread=grow samples further answers below a thought, and the rollouts of {args.method} have no "
            "thoughts with answers: use redraw, or method grpo_ma"
        )


def check_budget(args) -> None:
    """UserError if the growth budget of a generation is less than one answer; called once sizes are derived."""
    if args.on_zero_spread == "grow" and args.further_answers < 1:
        total = args.leaves * args.prompts_per_generation * args.world_size
        raise UserError(
            f"grow_budget={args.grow_budget} of the {total} leaves of a generation is less than one answer: raise it, "
            "or the number of prompts per generation (gradient_accumulation_steps, per_device_train_batch_size)"
        )


def _check_bounds(bounds: list[float] | None) -> None:
    if bounds is None:
        return
    if len(bounds) != 2 or not all(map(math.isfinite, bounds)) or not bounds[0] < bounds[1]:
        raise UserError(f"keep_between={bounds} must be two finite numbers, the lower one first, such as 0.01 0.99")
