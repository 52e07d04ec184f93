"""Arguments of agent rollouts in trees (Tree-GRPO): how many, where they branch, and what a turn may cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from config.choices import check_choices
from trainer.advantages.intra_inter import PARTS
from trainer.policies.agent.build import settings_of

LENGTH = 4096  # tokens of a completion, observations included; arXiv 2509.21240, Table 5


@dataclass
class TreeGRPOArguments:
    """Fields of `method tree_grpo` (arXiv 2509.21240; defaults are its Table 5). Leaves a prompt: M * (L * N + 1)."""

    tree_num: int = field(default=2, metadata={"help": "M, trees a prompt: chains that are started (tree_grpo)."})
    expand_num: int = field(
        default=2, metadata={"help": "N, branches added to each tree in a round; 0: chains alone (tree_grpo)."}
    )
    expand_rounds: int = field(default=1, metadata={"help": "L, rounds of branching; 0: chains alone (tree_grpo)."})
    expand_root: bool = field(
        default=False, metadata={"help": "Let a branch also start at the prompt, as a new chain (tree_grpo)."}
    )
    fork_choice: str = field(
        default="paper",
        metadata={
            "help": "Steps to branch after (tree_grpo): paper, those that are no leaf, each once while enough exist; "
            "code, as the released code: with replacement, the prompt among them.",
            "choices": ["paper", "code"],
        },
    )
    branch_temperature: float | None = field(
        default=None, metadata={"help": "Temperature of branches (tree_grpo). Default: temperature."}
    )
    advantage: str = field(
        default="intra_inter",
        metadata={
            "help": "A leaf against its tree plus against its prompt (the paper), or one of the two (tree_grpo).",
            "choices": list(PARTS),
        },
    )
    max_turns: int = field(
        default=3, metadata={"help": "Turns with an observation; the turn after them must answer (tree_grpo)."}
    )
    max_turn_length: int = field(default=500, metadata={"help": "Tokens the model may write in one turn (tree_grpo)."})
    max_observation_length: int = field(
        default=500, metadata={"help": "Tokens of an observation, its tags included; longer text is cut (tree_grpo)."}
    )
    tool_timeout: float = field(default=30.0, metadata={"help": "Seconds a turn's tool calls may take (tree_grpo)."})
    environment_args: str | None = field(
        default=None,
        metadata={
            "help": "What every environment's reset gets beside the record, such as the retriever: a mapping in a "
            "recipe, a JSON object as a flag (tree_grpo)."
        },
    )


def leaves_of(args) -> int:
    """Leaves a prompt: M * (L * N + 1)."""
    return args.tree_num * (args.expand_rounds * args.expand_num + 1)


def check_tree_grpo(args) -> None:
    """Raises ValueError, one sentence, for the first setting of a GRPOConfig that tree_grpo cannot work with."""
    check_choices(args, ("fork_choice", "advantage"))
    for name, least in (("tree_num", 1), ("max_turns", 1), ("max_turn_length", 1), ("max_observation_length", 32)):
        if not getattr(args, name) >= least:
            raise ValueError(f"{name}={getattr(args, name)} must be at least {least}")
    for name in ("expand_num", "expand_rounds"):
        if not getattr(args, name) >= 0:
            raise ValueError(f"{name}={getattr(args, name)} must be at least 0")
    if leaves_of(args) < 2:
        raise ValueError(
            f"tree_num={args.tree_num}, expand_num={args.expand_num} and expand_rounds={args.expand_rounds} give one "
            "leaf a prompt, which has no advantage: raise one of them"
        )
    if args.advantage == "intra" and leaves_of(args) == args.tree_num:
        raise ValueError(
            "advantage=intra compares the leaves of a tree, but without branches each tree has one: set expand_num and "
            "expand_rounds to at least 1, or advantage to inter"
        )
    for name in ("tool_timeout", "branch_temperature"):
        value = getattr(args, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name}={value} must be a finite number above 0")
    if args.mask_truncated_completions:
        raise ValueError(
            "mask_truncated_completions=true would leave every agent rollout out: they end with a tag, not with the "
            "end of sequence; set it to false"
        )
    settings_of(args)
