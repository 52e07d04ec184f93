"""Settings of turn_value: AT2PO (arXiv 2601.04767), agent chains that branch after their most surprising turns.

The preset follows the paper's released script: 10 chains, twice 6 branches, a ratio per turn with its own clipping,
learning rate 1e-6, no KL term, mean over the tokens of a sequence and then over sequences. The limits of turns are
Tree-GRPO's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from config.agents import AT_LEAST, LENGTH, AgentFields, check_agent_settings
from config.method_settings import MethodSettings, RolloutSize
from task.errors import UserError


@dataclass
class TurnValueFields(AgentFields):
    """Fields of `method turn_value`. Leaves per prompt: turn_chains + turn_rounds * turn_branches."""

    turn_chains: int = field(default=10, metadata={"help": "Chains that start at the prompt (turn_value)."})
    turn_branches: int = field(
        default=6, metadata={"help": "Branches per prompt and round, after the turns of highest score (turn_value)."}
    )
    turn_rounds: int = field(default=2, metadata={"help": "Rounds of branches; 0: chains only (turn_value)."})
    sibling_penalty: float = field(
        default=0.05,
        metadata={
            "help": "A turn's score is its mean -log p per token, in nats, minus this for each of its siblings "
            "(turn_value)."
        },
    )
    turn_baseline: str = field(
        default="none",
        metadata={
            "help": "What is subtracted from the value of a turn: none (the paper), parent, the value of the turn "
            "before it, or prompt, the value of the prompt (turn_value).",
            "choices": ["none", "parent", "prompt"],
        },
    )


def leaves_of(args) -> int:
    return args.turn_chains + args.turn_rounds * args.turn_branches


def size_of(args) -> RolloutSize:
    rule = f"turn_chains={args.turn_chains} + turn_rounds={args.turn_rounds} * turn_branches={args.turn_branches}"
    return RolloutSize(derived={"num_generations": (leaves_of(args), rule)}, default={"max_completion_length": LENGTH})


def check_turn_value(args) -> None:
    if leaves_of(args) < 2:
        raise UserError(
            f"turn_chains={args.turn_chains}, turn_rounds={args.turn_rounds} and turn_branches={args.turn_branches} "
            "give one leaf per prompt, which has no advantage: raise one of them"
        )
    if not (args.sibling_penalty >= 0 and math.isfinite(args.sibling_penalty)):
        raise UserError(f"sibling_penalty={args.sibling_penalty} must be a finite number of at least 0")
    if args.sync_prompt_across_ranks:
        raise UserError(
            "sync_prompt_across_ranks=True: turn_value needs the whole tree of a prompt on one process; set it to false"
        )
    check_agent_settings(args)


SETTINGS = MethodSettings(
    about="agent chains that branch after their most surprising turns",
    preset={
        "learning_rate": 1e-6,
        "loss_type": "grpo",
        "beta": 0.0,
        "sync_prompt_across_ranks": False,
        "importance_sampling_level": "sequence",
        "epsilon": 3e-3,
        "epsilon_high": 4e-3,
    },
    size=size_of,
    check=check_turn_value,
    fields=TurnValueFields,
    at_least={"turn_chains": 1, "turn_branches": 1, "turn_rounds": 0, **AT_LEAST},
    shown=tuple(TurnValueFields.__dataclass_fields__),
)
