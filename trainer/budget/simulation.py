"""The error of a policy gradient estimated from K thoughts with M answers each, by simulation of softmax thoughts.

A simulated prompt has S possible thoughts with probabilities p (a softmax over S logits) and mean rewards mu. The
gradient of the expected reward with respect to the logits is g_s = p_s (mu_s - sum_t p_t mu_t). One estimate draws K
thoughts s_1..s_K, M answers after each, and their advantages A_k as `trainer/advantages` computes them:

    estimate = 1/K * sum over k of A_k (e_{s_k} - p) = 1/K * sum over k of A_k e_{s_k}      (the A_k sum to 0)

Advantages that are divided by a standard deviation estimate a multiple of g, and a learning rate absorbs any multiple.
So the error is that of the estimate after scaling to the right length along g, relative to the length of g:

    error = E|estimate|^2 E|g|^2 / (E[estimate . g])^2 - 1

Expectations are over draws and prompts. For an unbiased estimate this is E|estimate - g|^2 / E|g|^2.
"""

# D draws, K thoughts, S possible thoughts

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.advantages.groups import EPSILON

# (prompt, indices (D, K) of the drawn thoughts, generator) -> their advantages (D, K)
Advantages = Callable[["Thoughts", np.ndarray, np.random.Generator], np.ndarray]
BLOCKS = 20  # of draws, between which the standard error is measured


@dataclass(frozen=True)
class Thoughts:
    """The possible thoughts of one prompt.

    Attributes:
        probabilities, means: (S,) of each thought; its mean reward.
        answers: (indices (D, K), M, generator) -> (D, K) mean rewards of M answers to each of these thoughts.
    """

    probabilities: np.ndarray
    means: np.ndarray
    answers: Callable[[np.ndarray, int, np.random.Generator], np.ndarray]

    @property
    def gradient(self) -> np.ndarray:
        return self.probabilities * (self.means - self.probabilities @ self.means)


def gaussian(between: float, within: float, count: int, rng: np.random.Generator) -> Thoughts:
    """`count` equally likely thoughts with normal means and normal answers, of the given variances."""
    means = np.sqrt(between) * rng.standard_normal(count)
    return Thoughts(
        np.full(count, 1 / count),
        means,
        lambda drawn, answers, rng: means[drawn] + np.sqrt(within / answers) * rng.standard_normal(drawn.shape),
    )


def standardised(values: np.ndarray, ddof: int = 1) -> np.ndarray:
    """Values standardised over their last axis, as `trainer.advantages.groups.standardise` does with ddof 1."""
    spread = values.std(axis=-1, ddof=ddof, keepdims=True)
    return np.where(spread > 1e-6, (values - values.mean(axis=-1, keepdims=True)) / (spread + EPSILON), 0.0)


def gradient_error(
    prompts: Sequence[Thoughts], thoughts: int, answers: int, draws: int, seed: int = 0, scale: str = "group"
) -> tuple[float, float]:
    """(error, its standard error) of the gradient from `thoughts` thoughts with `answers` answers each.

    Args:
        draws: per prompt, divided into `BLOCKS` blocks.
        scale: `scale_rewards`; "batch" and "none" differ by a constant, which the error does not see.
    """

    def advantages(prompt: Thoughts, drawn: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        values = prompt.answers(drawn, answers, rng)
        return standardised(values) if scale == "group" else values - values.mean(axis=1, keepdims=True)

    return estimate_error(prompts, advantages, thoughts, draws, seed)


def estimate_error(
    prompts: Sequence[Thoughts], advantages: Advantages, thoughts: int, draws: int, seed: int = 0
) -> tuple[float, float]:
    """(error, its standard error) with any rule for the advantages, which must sum to 0 over the thoughts of a draw."""
    rng = np.random.default_rng(seed)
    squares, along, size = np.zeros(BLOCKS), np.zeros(BLOCKS), draws // BLOCKS
    for prompt in prompts:
        gradient, cumulative = prompt.gradient, prompt.probabilities.cumsum()
        count = len(gradient)
        for block in range(BLOCKS):
            drawn = np.searchsorted(cumulative, rng.random((size, thoughts)) * cumulative[-1])
            place = drawn + count * np.arange(size)[:, None]
            weights = advantages(prompt, drawn, rng) / thoughts
            estimate = np.bincount(place.ravel(), weights.ravel(), size * count).reshape(size, count)
            squares[block] += (estimate**2).sum() / size
            along[block] += (estimate @ gradient).sum() / size
    length = sum(float(prompt.gradient @ prompt.gradient) for prompt in prompts)

    def error(squares, along):
        return squares * length / along**2 - 1

    left_out = error((squares.sum() - squares) / (BLOCKS - 1), (along.sum() - along) / (BLOCKS - 1))
    jackknife = np.sqrt((BLOCKS - 1) / BLOCKS * ((left_out - left_out.mean()) ** 2).sum())
    return float(error(squares.mean(), along.mean())), float(jackknife)
