"""What the settings of methods with independent completions share: their size, a preset and their checks."""

from __future__ import annotations

from config.method_settings import RolloutSize
from task.errors import UserError

SIZE = RolloutSize(default={"num_generations": 8, "max_completion_length": 512})
# TRL's own defaults, with the settings GRPO-MA is compared under.
PRESET = {"learning_rate": 1e-5, "loss_type": "grpo", "beta": 0.0, "sync_prompt_across_ranks": False}


def check_chains(args) -> None:
    """Raises UserError for a group of one completion, and for the weight of tokens that chains do not share."""
    if args.num_generations is not None and args.num_generations < 2:
        raise UserError(
            f"num_generations={args.num_generations}: an advantage compares at least 2 generations per prompt; set "
            "it to 2 or more"
        )
    if args.shared_token_weight == "once":
        raise UserError(
            f"shared_token_weight=once is for rows that share tokens; the chains of {args.method} do not: leave it out"
        )
