"""How many leaves a prompt has and how long a completion may be: what each method derives, and what it defaults to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from config import tree_adv_arguments, tree_grpo_arguments


@dataclass(frozen=True)
class Shape:
    """`derived`: field -> (value, the rule it follows), which cannot be set; `default`: field -> value, which can."""

    derived: dict[str, tuple[int, str]] = field(default_factory=dict)
    default: dict[str, int] = field(default_factory=dict)


def thoughts_and_answers(args) -> Shape:
    thought, answer = args.max_thought_length, args.max_answer_length
    return Shape(
        derived={
            "num_generations": (
                args.think_num * args.answer_num,
                f"think_num={args.think_num} * answer_num={args.answer_num}",
            ),
            "max_completion_length": (
                thought + answer,
                f"max_thought_length={thought} + max_answer_length={answer}",
            ),
        }
    )


def agent_trees(args) -> Shape:
    leaves = tree_grpo_arguments.leaves_of(args)
    rule = f"tree_num={args.tree_num} * (expand_rounds={args.expand_rounds} * expand_num={args.expand_num} + 1)"
    lengths = {"max_completion_length": tree_grpo_arguments.LENGTH}
    return Shape(derived={"num_generations": (leaves, rule)}, default=lengths)


SHAPES: dict[str, Callable] = {
    "grpo": lambda args: Shape(default={"num_generations": 8, "max_completion_length": 512}),
    "grpo_ma": thoughts_and_answers,
    "tree_grpo": agent_trees,
    "tree_adv": lambda args: Shape(
        default={
            "num_generations": tree_adv_arguments.LEAVES,
            "max_completion_length": tree_adv_arguments.LENGTH,
        }
    ),
}


def apply_shape(args) -> str:
    """Sets `num_generations` and `max_completion_length` and returns the rule the leaves follow.

    Raises ValueError where a derived field was set to another value.
    """
    shape = SHAPES[args.method](args)
    for name, (value, rule) in shape.derived.items():
        if getattr(args, name) not in (None, value):
            raise ValueError(
                f"{name}={getattr(args, name)}, but {args.method} derives {value} from {rule}: leave {name} out"
            )
        setattr(args, name, value)
    for name, value in shape.default.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return shape.derived.get("num_generations", (0, f"num_generations={args.num_generations}"))[1]
