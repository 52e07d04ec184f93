"""Settings of GiGPO (arXiv 2505.10978): G agent chains per prompt, credited as episodes and step by step.

Without branches: steps are compared where chains happen to see the same observation. Learning rate and KL weight are
those of tree_grpo.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from config.agents import AT_LEAST, LENGTH, AgentFields, check_agent_settings
from config.chains import check_chains
from config.method_settings import MethodSettings, RolloutSize
from task.errors import UserError


@dataclass
class GiGPOFields(AgentFields):
    """Fields of `method gigpo`."""

    step_weight: float = field(
        default=1.0, metadata={"help": "Weight of a step's advantage beside that of its episode (gigpo)."}
    )


def check_gigpo(args) -> None:
    check_chains(args)
    if not (args.step_weight >= 0 and math.isfinite(args.step_weight)):
        raise UserError(f"step_weight={args.step_weight} must be a finite number of at least 0")
    if args.sync_prompt_across_ranks:
        raise UserError(
            "sync_prompt_across_ranks=True: gigpo compares the steps of a prompt, which one process must hold; set it "
            "to false"
        )
    if args.scale_rewards == "batch":
        raise UserError(
            "scale_rewards='batch': gigpo compares steps within their prompt, not over the batch; set it to group or "
            "none"
        )
    check_agent_settings(args)


SETTINGS = MethodSettings(
    about="G agent chains, compared by episode and by step",
    preset={"learning_rate": 1e-6, "loss_type": "grpo", "beta": 0.001, "sync_prompt_across_ranks": False},
    size=lambda args: RolloutSize(default={"num_generations": 8, "max_completion_length": LENGTH}),
    check=check_gigpo,
    fields=GiGPOFields,
    at_least=AT_LEAST,
    shown=tuple(GiGPOFields.__dataclass_fields__),
)
