"""Check of the settings that take one of a few names."""

from __future__ import annotations

from collections.abc import Iterable

from task.errors import UserError


def check_choices(args, names: Iterable[str]) -> None:
    """Raises UserError, one sentence, for the first of these fields whose value is not one of its `choices`."""
    for name in names:
        choices = args.__dataclass_fields__[name].metadata["choices"]
        if getattr(args, name) not in choices:
            raise UserError(f"{name}={getattr(args, name)!r} is unknown: choose one of {', '.join(choices)}")
