"""What is drawn for prompts without signal: other prompts, places for further answers, and the rows that train.

Pure functions of their arguments: every process computes the same, and a resumed run repeats them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from trainer.advantages.groups import sample_std

PROMPTS, PLACES, ROWS = range(3)  # streams of random numbers


def substitutes(
    num_prompts: int, drawn: Collection[int], seed: int, generation: int, rounds: int, groups: int
) -> np.ndarray:
    """(rounds, groups) dataset rows that replace a generation's prompts, one per round and prompt; -1: none is left.

    Args:
        num_prompts: rows of the dataset.
        drawn: the rows that the sampler drew for this generation, which are left out.
        groups: prompts of the generation over all processes.

    No row occurs twice, so a generation never holds a prompt twice.

    >>> substitutes(5, [0, 1], seed=0, generation=0, rounds=2, groups=2).tolist()
    [[2, 4], [3, -1]]
    """
    order = np.random.default_rng([seed, generation, PROMPTS]).permutation(num_prompts)
    order = order[~np.isin(order, list(drawn))][: rounds * groups]
    return np.pad(order, (0, rounds * groups - len(order)), constant_values=-1).reshape(rounds, groups)


def without_signal(totals: np.ndarray, groups: np.ndarray, bounds: Sequence[float] | None = None) -> list[int]:
    """The groups whose rewards do not differ, or whose mean reward lies outside of `bounds`.

    Args:
        totals: (N,) rewards, NaN for a row without; a group without any reward has no signal.
        groups: (N,) group of each row.

    >>> without_signal(np.array([1.0, 1.0, 0.0, 1.0, np.nan]), np.array([0, 0, 1, 1, 2]))
    [0, 2]
    """
    found = []
    for group in np.unique(groups):
        values = totals[(groups == group) & ~np.isnan(totals)]
        outside = bounds is not None and len(values) and not bounds[0] <= values.mean() <= bounds[1]
        if sample_std(values) == 0.0 or outside:
            found.append(int(group))
    return found


def answers_per_tree(trees: Sequence[int], budget: int, most: int, seed: int, generation: int) -> dict[int, int]:
    """Tree -> its number of further answers: the budget spread as evenly as possible, at most `most` each.

    >>> answers_per_tree([3, 5, 8], budget=4, most=2, seed=0, generation=0)
    {3: 1, 5: 2, 8: 1}
    """
    if not trees:
        return {}
    share, rest = divmod(budget, len(trees))
    lucky = np.random.default_rng([seed, generation, PLACES]).permutation(len(trees))[:rest]
    return {tree: min(share + (place in lucky), most) for place, tree in enumerate(trees)}


def trained_rows(scored: int, rows: int, seed: int, generation: int, tree: int) -> list[int]:
    """`rows` of the `scored` rows of a tree, drawn uniformly without replacement, in ascending order."""
    if scored == rows:
        return list(range(rows))
    chosen = np.random.default_rng([seed, generation, ROWS, tree]).choice(scored, rows, replace=False)
    return sorted(chosen.tolist())
