"""The methods: each a branching policy and an advantage estimator, named in one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.thought_answer import thought_answer, zero_spread_share
from trainer.policies.chain import ChainPolicy
from trainer.policies.thought_answer import ThoughtAnswerPolicy


@dataclass(frozen=True)
class Credit:
    """Advantages of N rows: `leaf` is the row's own (the answer's in grpo_ma), `thought` None for methods without."""

    leaf: np.ndarray
    thought: np.ndarray | None = None
    metrics: dict[str, float] = field(default_factory=dict)


def credit_grpo(rewards, groups, thoughts, closed, shrinkage) -> Credit:
    metrics = {"advantages/zero_spread": zero_spread_share(np.asarray(rewards), groups)}
    return Credit(leaf=leaf_group(rewards, groups), metrics=metrics)


def credit_grpo_ma(rewards, groups, thoughts, closed, shrinkage) -> Credit:
    result = thought_answer(rewards, groups, thoughts, closed, shrinkage)
    metrics = {
        "variance/between": result.between,
        "variance/within": result.within,
        "variance/rho": result.rho,
        "thought/zero_spread": result.thought_zero_spread,
        "answer/zero_spread": result.answer_zero_spread,
    }
    return Credit(leaf=result.answer, thought=result.thought, metrics=metrics)


def chains(args, warming_up: bool) -> ChainPolicy:
    return ChainPolicy(args.num_generations, args.max_completion_length)


def thoughts_and_answers(args, warming_up: bool) -> ThoughtAnswerPolicy:
    answers = 1 if warming_up else args.answer_num
    lengths = (args.max_thought_length, args.max_answer_length)
    return ThoughtAnswerPolicy(args.think_num, answers, *lengths, args.thought_end)


@dataclass(frozen=True)
class Method:
    """`policy(args, warming_up)` and `credit(rewards, prompt groups, thoughts, closed, shrinkage)`, all of N rows."""

    policy: Callable
    credit: Callable[..., Credit]


METHODS = {
    "grpo": Method(policy=chains, credit=credit_grpo),
    "grpo_ma": Method(policy=thoughts_and_answers, credit=credit_grpo_ma),
}
