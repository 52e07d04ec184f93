"""What methods whose completions act in environments share: their limits per turn, environment arguments and checks."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from task.errors import UserError

LENGTH = 4096  # tokens per completion, observations included; arXiv 2509.21240, Table 5
AT_LEAST = {"max_turns": 1, "max_turn_length": 1, "max_observation_length": 32}


@dataclass
class AgentFields:
    """Fields of methods that act; the defaults are Tree-GRPO's (arXiv 2509.21240, Table 5)."""

    max_turns: int = field(
        default=3, metadata={"help": "Maximum turns with an observation; the next turn must answer (agents)."}
    )
    max_turn_length: int = field(default=500, metadata={"help": "Maximum tokens sampled per turn (agents)."})
    max_observation_length: int = field(
        default=500, metadata={"help": "Maximum tokens per observation, tags included; longer text is cut (agents)."}
    )
    tool_timeout: float = field(
        default=30.0, metadata={"help": "Time limit in seconds for the tool calls of a turn (agents)."}
    )
    gamma: float = field(
        default=1.0,
        metadata={
            "help": "Discount of rewards per turn (agents): in gigpo of those that come after a step, else of an "
            "episode's, from its first turn on. The final reward comes with the last turn."
        },
    )
    environment_args: str | None = field(
        default=None,
        metadata={
            "help": "Arguments of every environment's reset besides the record, such as the retriever: a mapping in a "
            "recipe, a JSON object on the command line (agents)."
        },
    )


def parse_environment_args(text: str | None) -> dict[str, Any]:
    """environment_args as a dict. Raises UserError if they are not a JSON object."""
    try:
        found = {} if text is None else json.loads(text)
    except ValueError as error:
        raise UserError(f"environment_args={text!r} is not JSON ({error}): give an object") from None
    if not isinstance(found, dict):
        raise UserError(f"environment_args={text!r} must be a JSON object of names and values")
    return found


def check_agent_settings(args) -> None:
    """Raises UserError for the first of these settings that no agent can work with."""
    if not (args.tool_timeout > 0 and math.isfinite(args.tool_timeout)):
        raise UserError(f"tool_timeout={args.tool_timeout} must be a finite number above 0")
    if not 0 < args.gamma <= 1:
        raise UserError(f"gamma={args.gamma} must be above 0 and at most 1")
    if args.mask_truncated_completions:
        raise UserError(
            "mask_truncated_completions=true would mask out every agent rollout: they end with a tag, not with the end "
            "of sequence; set it to false"
        )
    parse_environment_args(args.environment_args)
