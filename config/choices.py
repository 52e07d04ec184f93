"""The settings that are one of a few names."""

from __future__ import annotations

from collections.abc import Iterable

from task.errors import UserError


def check_choices(args, names: Iterable[str]) -> None:
    """Raises UserError, one sentence, for the first of these fields that is none of its own `choices`."""
    for name in names:
        choices = args.__dataclass_fields__[name].metadata["choices"]
        if getattr(args, name) not in choices:
            raise UserError(f"{name}={getattr(args, name)!r} is unknown: choose one of {', '.join(choices)}")
