"""GRPO-MA: the value of a thought is the mean reward of its answers, standardised over the thoughts of its prompt.

arXiv 2509.24494. With R_km the reward of answer m to thought k of one prompt:

    V(th_k)    = mean over m of R_km
    A(th_k)    = (V_k - mean V) / std V        over the K thoughts of the prompt
    A(ans_km)  = (R_km - mean R) / std R       over all K*M answers of the prompt

The paper specifies neither the std nor the epsilon; here they are the sample std and 1e-4, as in TRL. The estimator is
otherwise the paper's. `scale` names another divisor than the std of the prompt, which for thoughts shrinks with the
differences between them: where thoughts do not matter, it brings the noise of their M answers to unit size.

Reliability (our addition, logged, from the one-way variance decomposition of the K x M rewards):
rho = between / (between + within / M), the share of the variance of thought values that is not sampling noise of the M
answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.advantages.groups import sample_std, standardise


@dataclass(frozen=True)
class ThoughtAnswer:
    """Per-row results of `thought_answer` and the variance decomposition averaged over prompts.

    Attributes:
        thought: (N,) advantage of each row's thought.
        answer: (N,) advantage of each row's answer.
        between, within: variance between the true thought values, and of the answers to one thought (squared reward
            units).
        rho: reliability in [0, 1]; NaN when no prompt has two closed thoughts with two scored answers each.
        thought_zero_spread, answer_zero_spread: share of prompts whose thought values / rewards are all equal.
    """

    thought: np.ndarray
    answer: np.ndarray
    between: float
    within: float
    rho: float
    thought_zero_spread: float
    answer_zero_spread: float


def thought_answer(rewards, prompts, thoughts, closed=None, scale: str = "group") -> ThoughtAnswer:
    """Thought and answer advantages of N rows (a row is one thought with one of its answers).

    Args:
        rewards: (N,) reward of each row, NaN for a row without.
        prompts: (N,) prompt group id of each row.
        thoughts: (N,) thought id of each row, unique over all prompts.
        closed: (N,) bool, False for rows of a thought that never closed. Such rows enter both groups with their reward
            but are excluded from the variance decomposition (their M rows are one completion, not M samples). Default:
            all closed.
        scale: of both levels, see `standardise`; for thoughts, the batch is the values of all thoughts of all prompts.

    >>> out = thought_answer([1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1])
    >>> out.thought.round(3).tolist(), out.answer.round(3).tolist()
    ([0.707, 0.707, -0.707, -0.707], [1.5, -0.5, -0.5, -0.5])
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    prompts, thoughts = np.asarray(prompts), np.asarray(thoughts)
    closed = np.ones(len(rewards), dtype=bool) if closed is None else np.asarray(closed, dtype=bool)

    ids, first, row_thought = np.unique(thoughts, return_index=True, return_inverse=True)
    owner = prompts[first]
    assert (owner[row_thought] == prompts).all(), "a thought belongs to one prompt"
    values = np.array([_mean(rewards[row_thought == k]) for k in range(len(ids))])
    thought = standardise(values, owner, scale)

    stats = []
    for prompt in np.unique(prompts):
        rows = prompts == prompt
        stats.append(_decompose(rewards[rows & closed], row_thought[rows & closed]))
    between, within, rho = (_mean(column) for column in np.array(stats).reshape(-1, 3).T)
    return ThoughtAnswer(
        thought=thought[row_thought],
        answer=standardise(rewards, prompts, scale),
        between=between,
        within=within,
        rho=rho,
        thought_zero_spread=zero_spread_share(values, owner),
        answer_zero_spread=zero_spread_share(rewards, prompts),
    )


def opposed_thoughts(thought, answer, thoughts, closed) -> list[bool]:
    """For each closed thought, whether one of its answers has an advantage of the other sign than the thought's.

    Such a thought and that answer push the model in opposite directions. Arguments as in `ThoughtAnswer` and
    `thought_answer`, (N,) each.

    >>> opposed_thoughts(np.array([0.7, 0.7, -0.7, -0.7]), np.array([1.5, -0.5, -0.5, -0.5]), [0, 0, 1, 1], [True] * 4)
    [True, False]
    """
    thoughts, closed, opposed = np.asarray(thoughts), np.asarray(closed), np.asarray(thought) * np.asarray(answer) < 0
    return [bool(opposed[thoughts == k].any()) for k in np.unique(thoughts[closed])]


def zero_spread_share(values: np.ndarray, groups: np.ndarray) -> float:
    """Share of groups whose values are all equal (no learning signal)."""
    ids = np.unique(groups)
    kept = [values[(groups == g) & ~np.isnan(values)] for g in ids]
    return float(np.mean([sample_std(v) == 0.0 for v in kept])) if len(ids) else float("nan")


def _decompose(rewards: np.ndarray, thoughts: np.ndarray) -> tuple[float, float, float]:
    """(between, within, rho) of one prompt's closed rows; NaN unless two thoughts have two scored answers each."""
    samples = [rewards[(thoughts == k) & ~np.isnan(rewards)] for k in np.unique(thoughts)]
    samples = [s for s in samples if len(s) > 1]
    if len(samples) < 2:
        return (float("nan"),) * 3
    within = float(np.mean([s.var(ddof=1) for s in samples]))
    noise = float(np.mean([s.var(ddof=1) / len(s) for s in samples]))
    spread = sample_std(np.array([s.mean() for s in samples])) ** 2
    between = max(0.0, spread - noise)
    return between, within, between / (between + noise) if between + noise > 0 else 0.0


def _mean(values: np.ndarray) -> float:
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if len(kept) else float("nan")
