"""Settings of REINFORCE++ (arXiv 2501.03262): G independent completions per prompt, normalised over the whole batch.

The preset keeps grpo's learning rate and beta 0. The paper subtracts its KL penalty from the reward; here, as in all
methods, `beta` weighs TRL's KL term of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from config.chains import PRESET, SIZE, check_chains
from config.method_settings import MethodSettings
from task.errors import UserError


@dataclass
class ReinforcePlusPlusFields:
    """Fields of `method reinforce_plus_plus`."""

    reward_baseline: str = field(
        default="batch",
        metadata={
            "help": "The mean that is subtracted from a reward (reinforce_plus_plus): that of the whole batch "
            "(REINFORCE++), or that of the prompt (REINFORCE++-baseline). The result is normalised over the batch.",
            "choices": ["batch", "prompt"],
        },
    )


def check_reinforce_plus_plus(args) -> None:
    check_chains(args)
    if args.scale_rewards == "group":
        raise UserError(
            "scale_rewards='group': reinforce_plus_plus normalises over the batch; set it to batch or none, or use "
            "method grpo"
        )
    if args.on_zero_spread == "redraw" and args.reward_baseline == "batch":
        raise UserError(
            "on_zero_spread=redraw replaces prompts without signal, and reinforce_plus_plus compares rewards with the "
            "whole batch, where a prompt with equal rewards has one: leave it out, or set reward_baseline to prompt"
        )


SETTINGS = MethodSettings(
    about="G chains, normalised over the batch",
    preset=PRESET | {"scale_rewards": "batch"},
    size=lambda args: SIZE,
    check=check_reinforce_plus_plus,
    fields=ReinforcePlusPlusFields,
    shown=("reward_baseline",),
)
