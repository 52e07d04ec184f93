"""Settings of TreeAdv-style rollouts (arXiv 2601.03703): where chains fork, and how credit propagates up the tree.

The paper's own values could not be found: the preset is grpo's, and all defaults are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from config.method_settings import MethodSettings, RolloutSize
from task.errors import UserError

LEAVES, LENGTH = 16, 512


@dataclass
class TreeAdvFields:
    """Fields of `method tree_adv`."""

    num_trees: int = field(default=4, metadata={"help": "Seed chains per prompt, which fork (tree_adv)."})
    branch_factor: int = field(
        default=2, metadata={"help": "Children per fork, the continued chain included (tree_adv)."}
    )
    min_gap: int = field(
        default=16,
        metadata={"help": "Minimum tokens before the first fork of a path and between two forks (tree_adv)."},
    )
    fork_rule: str = field(
        default="entropy",
        metadata={
            "help": "What selects the tokens that fork (tree_adv): the entropy of the distribution they are sampled "
            "from; for comparison also random (as many tokens, at random), fixed (every min_gap tokens), or the "
            "surprisal of the token itself.",
            "choices": ["entropy", "random", "fixed", "surprisal"],
        },
    )
    fork_share: float = field(
        default=0.2,
        metadata={
            "help": "Share of tokens, the most uncertain ones, that may fork (tree_adv); the threshold is a running "
            "quantile over the earlier generations, and ln 2 nats in the first."
        },
    )
    fork_entropy: float | None = field(
        default=None,
        metadata={"help": "Fixed threshold of entropy or surprisal in nats, instead of fork_share (tree_adv)."},
    )
    fork_in_answer: bool = field(
        default=True,
        metadata={"help": "Also fork inside the answer, after thought_end or <answer> (tree_adv)."},
    )
    distinct_forks: bool = field(
        default=True,
        metadata={"help": "Siblings start with different tokens; false: with independent samples (tree_adv)."},
    )
    aggregation: str = field(
        default="mean",
        metadata={
            "help": "How the advantages of a shared segment's leaves are combined (tree_adv): mean, sum, or sqrt (the "
            "sum divided by the square root of their number).",
            "choices": ["mean", "sum", "sqrt"],
        },
    )


def leaves_of(args) -> int:
    """Leaves per prompt: num_generations, 16 if not given."""
    return LEAVES if args.num_generations is None else args.num_generations


def check_tree_adv(args) -> None:
    leaves = leaves_of(args)
    if leaves < 2:
        raise UserError(f"num_generations={leaves}: an advantage compares at least 2 leaves of a prompt; set 2 or more")
    if args.num_trees > leaves:
        raise UserError(
            f"num_trees={args.num_trees} seed chains do not fit into num_generations={leaves} leaves per prompt: lower "
            "num_trees, so that forks can add the others, or raise num_generations"
        )
    if not args.branch_factor >= 2:
        raise UserError(
            f"branch_factor={args.branch_factor} never forks: set it to 2 or more, or use method grpo for plain chains"
        )
    if not 0 < args.fork_share < 1:
        raise UserError(f"fork_share={args.fork_share} must be above 0 and below 1: it is a share of the tokens")
    if args.fork_entropy is not None:
        if args.fork_rule in ("random", "fixed"):
            raise UserError(
                f"fork_entropy={args.fork_entropy} is a threshold of entropy or surprisal, which "
                f"fork_rule={args.fork_rule} does not use: leave fork_entropy out"
            )
        if not (args.fork_entropy >= 0 and math.isfinite(args.fork_entropy)):
            raise UserError(f"fork_entropy={args.fork_entropy} must be a finite number of nats, at least 0")


SETTINGS = MethodSettings(
    about="chains that fork where the model is uncertain",
    preset={"learning_rate": 1e-5, "loss_type": "grpo", "beta": 0.0, "sync_prompt_across_ranks": False},
    size=lambda args: RolloutSize(default={"num_generations": LEAVES, "max_completion_length": LENGTH}),
    check=check_tree_adv,
    fields=TreeAdvFields,
    at_least={"num_trees": 1, "min_gap": 1},
    shown=tuple(TreeAdvFields.__dataclass_fields__),
)
