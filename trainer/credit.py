"""Leaf rewards -> the advantages of a method, with what the step log says about them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.thought_answer import thought_answer, zero_spread_share


@dataclass(frozen=True)
class Credit:
    """Advantages of N rows. `leaf` is the row's own (the answer's in grpo_ma); `thought` is None for methods without."""

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


# method -> f(rewards (N,), prompt groups (N,), thoughts (N,), closed (N,), shrinkage) -> Credit
ESTIMATORS = {"grpo": credit_grpo, "grpo_ma": credit_grpo_ma}
