"""Settings of Tree-GRPO (arXiv 2509.21240): number of trees of agent steps, where they branch, limits per turn.

The defaults are the paper's Table 5. The preset follows its Table 5 and Eq. 8: learning rate 1e-6, KL 0.001, mean over
the tokens of a sequence, then over sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from config.agents import AT_LEAST, LENGTH, AgentFields, check_agent_settings
from config.method_settings import MethodSettings, RolloutSize
from task.errors import UserError


@dataclass
class TreeGRPOFields(AgentFields):
    """Fields of `method tree_grpo`. Leaves per prompt: M * (L * N * B + 1)."""

    tree_num: int = field(default=2, metadata={"help": "M, trees per prompt, each starting as one chain (tree_grpo)."})
    expand_num: int = field(
        default=2, metadata={"help": "N, nodes of each tree that branch in a round; 0: chains only (tree_grpo)."}
    )
    branches_per_node: int = field(
        default=1, metadata={"help": "B, branches at each node that branches (tree_grpo). The paper has one."}
    )
    expand_rounds: int = field(default=1, metadata={"help": "L, rounds of branching; 0: chains only (tree_grpo)."})
    expand_root: bool = field(
        default=False, metadata={"help": "Let a branch also start at the prompt, as a new chain (tree_grpo)."}
    )
    fork_choice: str = field(
        default="paper",
        metadata={
            "help": "Steps to branch after (tree_grpo): paper: steps that are not leaves, without replacement while "
            "enough exist; code: as in the released code, with replacement and the prompt included.",
            "choices": ["paper", "code"],
        },
    )
    branch_temperature: float | None = field(
        default=None, metadata={"help": "Temperature of branches (tree_grpo). Default: temperature."}
    )
    branch_top_k: int | None = field(
        default=None,
        metadata={"help": "Branches sample from the k most likely tokens; 0: from all (tree_grpo). Default: top_k."},
    )
    advantage: str = field(
        default="intra_inter",
        metadata={
            "help": "Compare a leaf within its tree (intra), within its prompt (inter), or add both (the paper) "
            "(tree_grpo).",
            "choices": ["intra_inter", "inter", "intra"],
        },
    )


def leaves_of(args) -> int:
    """Leaves per prompt: M * (L * N * B + 1)."""
    return args.tree_num * (args.expand_rounds * args.expand_num * args.branches_per_node + 1)


def size_of(args) -> RolloutSize:
    product = f"expand_rounds={args.expand_rounds} * expand_num={args.expand_num}"
    if args.branches_per_node != 1:
        product += f" * branches_per_node={args.branches_per_node}"
    rule = f"tree_num={args.tree_num} * ({product} + 1)"
    return RolloutSize(derived={"num_generations": (leaves_of(args), rule)}, default={"max_completion_length": LENGTH})


def check_tree_grpo(args) -> None:
    if leaves_of(args) < 2:
        raise UserError(
            f"tree_num={args.tree_num}, expand_num={args.expand_num} and expand_rounds={args.expand_rounds} give one "
            "leaf per prompt, which has no advantage: raise one of them"
        )
    if args.advantage == "intra" and leaves_of(args) == args.tree_num:
        raise UserError(
            "advantage=intra compares the leaves of a tree, but without branches each tree has one: set expand_num and "
            "expand_rounds to at least 1, or advantage to inter"
        )
    hot = args.branch_temperature
    if hot is not None and not (hot > 0 and math.isfinite(hot)):
        raise UserError(f"branch_temperature={hot} must be a finite number above 0")
    check_agent_settings(args)


SETTINGS = MethodSettings(
    about="agent steps that branch",
    preset={"learning_rate": 1e-6, "loss_type": "grpo", "beta": 0.001, "sync_prompt_across_ranks": False},
    size=size_of,
    check=check_tree_grpo,
    fields=TreeGRPOFields,
    at_least={
        "tree_num": 1,
        "expand_num": 0,
        "expand_rounds": 0,
        "branches_per_node": 1,
        "branch_top_k": 0,
        **AT_LEAST,
    },
    shown=tuple(TreeGRPOFields.__dataclass_fields__),
)
