"""One reward a row out of several functions, some of which abstain on some rows."""

from __future__ import annotations

import numpy as np


def row_totals(values, weights, prompts, judges) -> np.ndarray:
    """(N,) weighted sums over the functions that did not abstain; NaN for a row that is left out of its group.

    Left out is a row on which every function that counts abstained, and one on which a judge abstained that scored
    another row of the prompt: without its part such a row would stand there as a wrong answer.

    Args:
        values: (N, F) rewards, NaN where a function abstains.
        weights: (F,); a function of weight 0 is looked at by nobody.
        prompts: (N,) prompt group id of each row.
        judges: (F,) bool, True for functions that abstain on all rows of a prompt or have failed on those they do.

    >>> row_totals([[1, 1], [1, np.nan], [1, 0], [1, np.nan]], [0.5, 1], [0, 0, 0, 1], [True, True]).tolist()
    [1.5, nan, 0.5, 0.5]
    """
    weights, prompts = np.asarray(weights, dtype=np.float64), np.asarray(prompts)
    counts = weights != 0
    values = np.asarray(values, dtype=np.float64)[:, counts]
    abstains = np.isnan(values)
    out = abstains.all(axis=1)
    for column in np.flatnonzero(np.asarray(judges)[counts]):
        out |= abstains[:, column] & np.isin(prompts, prompts[~abstains[:, column]])
    return np.where(out, np.nan, np.nansum(values * weights[counts], axis=1))
