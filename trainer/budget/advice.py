"""Which K and M have the smallest error of the policy gradient for a budget per prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trainer.budget.probe import Probe
from trainer.budget.simulation import gaussian, gradient_error

POSSIBLE_THOUGHTS, PROMPTS, DRAWS = 128, 16, 4_000
LARGEST = 64  # of K and of M
ANSWERS = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, LARGEST)  # considered, unless a divisor is needed


@dataclass(frozen=True)
class Candidate:
    """K thoughts with M answers each: their cost, and the error of their gradient with its standard error."""

    think_num: int
    answer_num: int
    cost: float
    error: float
    standard_error: float


@dataclass(frozen=True)
class Advice:
    """The candidates, the best first, and the first guess of M: sqrt(thought_cost / answer_cost * within / between)."""

    candidates: list[Candidate]
    guess: float

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def sizes_within(probe: Probe, budget: float, think_num=None, answer_num=None, rows: int | None = None) -> list:
    """(K, M) pairs that the budget allows, for each M the largest K.

    Args:
        budget: per prompt, in the units of the probe's costs.
        think_num, answer_num: a value that is fixed; None: to be chosen.
        rows: a number that K * M must divide; None: any K * M.
    """
    pairs = []
    for m in [answer_num] if answer_num else ANSWERS if rows is None else range(1, LARGEST + 1):
        most = min(LARGEST, int(budget / (probe.thought_cost + m * probe.answer_cost) + 1e-9))
        counts = [think_num] if think_num else range(most, 1, -1)
        fits = [k for k in counts if 2 <= k <= most and (rows is None or rows % (k * m) == 0)]
        pairs += [(k, m) for k in fits[:1]]
    return pairs


def advise(probe: Probe, pairs: list[tuple[int, int]], scale: str = "group", seed: int = 0) -> Advice:
    """The error of each pair by simulation with the probe's variances, the smallest first; all see the same prompts."""
    rng = np.random.default_rng(seed)
    prompts = [gaussian(probe.between, probe.within, POSSIBLE_THOUGHTS, rng) for _ in range(PROMPTS)]
    found = []
    for k, m in pairs:
        cost = k * (probe.thought_cost + m * probe.answer_cost)
        found.append(Candidate(k, m, cost, *gradient_error(prompts, k, m, DRAWS, seed, scale)))
    found.sort(key=lambda one: one.error)
    ratio = probe.within / probe.between if probe.between > 0 else math.inf
    return Advice(found, math.sqrt(probe.thought_cost / probe.answer_cost * ratio))


def in_words(advice: Advice, probe: Probe, budget: float, unit: str = "tokens", shown: int = 6) -> str:
    """Why the best pair was chosen, and the expected errors of its neighbours, one line each."""
    best = advice.best
    lines = [
        f"think_num {best.think_num}, answer_num {best.answer_num}: the variance of rewards is {probe.between:.4g} "
        f"between thoughts and {probe.within:.4g} between the answers of a thought; a thought costs "
        f"{probe.thought_cost:.4g} {unit}, an answer {probe.answer_cost:.4g}; budget {budget:.4g} {unit} per prompt; "
        f"first guess of answer_num: {advice.guess:.1f}"
    ]
    for one in advice.candidates[:shown]:
        lines.append(
            f"  {one.think_num:3} x {one.answer_num:<3} {one.cost:8.4g} {unit}  expected squared error of the gradient "
            f"{one.error:.3g} +- {one.standard_error:.2g} ({one.error / best.error:.2f} of the best)"
        )
    return "\n".join(lines)
