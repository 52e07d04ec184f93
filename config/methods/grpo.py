"""Settings of plain GRPO: G independent completions per prompt.

The preset is TRL's own default with the settings GRPO-MA is compared under.
"""

from __future__ import annotations

from config.method_settings import MethodSettings, RolloutSize
from task.errors import UserError

SIZE = RolloutSize(default={"num_generations": 8, "max_completion_length": 512})


def check_grpo(args) -> None:
    if args.num_generations is not None and args.num_generations < 2:
        raise UserError(
            f"num_generations={args.num_generations}: an advantage compares at least 2 generations per prompt; set "
            "it to 2 or more"
        )
    if args.shared_token_weight == "once":
        raise UserError(
            "shared_token_weight=once is for rows that share tokens; the chains of grpo do not: leave it out"
        )


SETTINGS = MethodSettings(
    about="G chains",
    preset={"learning_rate": 1e-5, "loss_type": "grpo", "beta": 0.0, "sync_prompt_across_ranks": False},
    size=lambda args: SIZE,
    check=check_grpo,
)
