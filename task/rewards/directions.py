"""Whether a higher or a lower value of an evaluation's metric is better."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

DIRECTIONS = ("lower", "higher")
# Added to every task by the evaluation; `n`, the number of records, has no direction.
EVERY_TASK = {
    **dict.fromkeys(("accuracy", "format", "pass@*", "mean@*"), "higher"),
    **dict.fromkeys(("n_parse_fail", "n_length", "n_load_error", "n_oom", "n_tool_error"), "lower"),
}


def direction(metric: str, declared: Mapping[str, str]) -> str | None:
    """The better values of a metric, "lower" or "higher"; None if they are not declared.

    Args:
        declared: METRICS of the metric's task, name -> direction; `*` in a name stands for any text.

    >>> direction("dfd_px", {"dfd_px": "lower"}), direction("em_2_hops", {"em_*_hops": "higher"}), direction("n", {})
    ('lower', 'higher', None)
    """
    known = {**declared, **EVERY_TASK}
    return known.get(metric) or next((way for name, way in known.items() if fnmatchcase(metric, name)), None)
