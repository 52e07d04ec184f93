"""Check of the settings that take one of a few names."""

from __future__ import annotations

from collections.abc import Iterable

from task.errors import UserError


def check_choices(args, names: Iterable[str]) -> None:
    """Raises UserError, one sentence, for the first of these fields whose value is not one of its `choices`.

    None passes where it is the default: the value is then filled in later.
    """
    for name in names:
        field, value = args.__dataclass_fields__[name], getattr(args, name)
        choices = field.metadata["choices"]
        if value not in choices and (value is not None or field.default is not None):
            raise UserError(f"{name}={value!r} is unknown: choose one of {', '.join(choices)}")
