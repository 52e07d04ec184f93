"""Range checks of numeric settings. NaN, which passes most comparisons and would end up in the weights, fails them."""

from __future__ import annotations

import math

from config.method_settings import check_at_least
from task.errors import UserError
from task.parsing.answers import thought_tags
from trainer.engines.sampling import Sampling

AT_LEAST_ONE = (
    "max_prompt_length", "max_slots", "max_completion_length", "rollout_prompts", "steps_per_generation",
    "num_iterations",
)  # fmt: skip
NOT_NEGATIVE = ("beta", "epsilon", "epsilon_high")
LIBRARY_AT_LEAST_ONE = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
LIBRARY_NOT_NEGATIVE = ("learning_rate", "max_grad_norm", "weight_decay")
ABOVE = {"delta": 1, "sapo_temperature_pos": 0, "sapo_temperature_neg": 0}


def check_library_ranges(args) -> None:
    """Raises UserError, one sentence, for the first setting of a TrainingArguments outside its range; None passes."""
    check_at_least(args, dict.fromkeys(LIBRARY_AT_LEAST_ONE, 1))
    _check_not_negative(args, LIBRARY_NOT_NEGATIVE)
    if args.max_steps == 0 or (args.max_steps < 0 and not args.num_train_epochs > 0):
        raise UserError(
            f"max_steps={args.max_steps} and num_train_epochs={args.num_train_epochs} give no training step: set one "
            "of them above 0 (max_steps -1 leaves it to the epochs)"
        )


def _check_not_negative(args, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(args, name)
        if value is not None and not (value >= 0 and math.isfinite(value)):
            raise UserError(f"{name}={value} must be a finite number of at least 0")


def check_ranges(args) -> None:
    """Raises UserError, one sentence, for the first setting of a GRPOConfig outside its range; None passes."""
    check_library_ranges(args)
    check_at_least(args, dict.fromkeys(AT_LEAST_ONE, 1))
    _check_not_negative(args, NOT_NEGATIVE)
    for name, least in ABOVE.items():
        value = getattr(args, name)
        if value is not None and not (value > least and math.isfinite(value)):
            raise UserError(f"{name}={value} must be a finite number above {least}")
    weights = args.reward_weights
    if weights is not None and not (any(weights) and all(map(math.isfinite, weights))):
        raise UserError(f"reward_weights={weights} must be finite numbers, not all of them 0")
    if not (args.reward_timeout > 0 and math.isfinite(args.reward_timeout)):
        raise UserError(f"reward_timeout={args.reward_timeout} must be a finite number of seconds above 0")
    if not args.temperature > 0:
        raise UserError(
            f"temperature={args.temperature} must be above 0: greedy completions of a prompt are all the same, so "
            "nothing can be learnt from comparing them"
        )
    Sampling(args.temperature, args.top_k or 0, args.top_p, args.min_p or 0.0, args.repetition_penalty)
    thought_tags(args.thought_end)


def check_weight_count(weights: list[float] | None, rewards: list[str]) -> None:
    """UserError unless there is a weight for each of the reward functions of these names; None: all weigh 1."""
    if weights is not None and len(weights) != len(rewards):
        raise UserError(
            f"reward_weights={weights} are {len(weights)} numbers for {len(rewards)} reward functions "
            f"({', '.join(rewards)}): give one for each, in this order"
        )
