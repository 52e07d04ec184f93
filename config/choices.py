"""The settings that are one of a few names."""

from __future__ import annotations

from collections.abc import Iterable


def check_choices(args, names: Iterable[str]) -> None:
    """Raises ValueError, one sentence, for the first of these fields that is none of its own `choices`."""
    for name in names:
        choices = args.__dataclass_fields__[name].metadata["choices"]
        if getattr(args, name) not in choices:
            raise ValueError(f"{name}={getattr(args, name)!r} is unknown: choose one of {', '.join(choices)}")
