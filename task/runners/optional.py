"""Packages that only some tasks need: missing ones are one sentence at the moment of use, so that every task loads."""

import importlib.util

from task.errors import UserError


class MissingPackage(UserError):
    """A package of an extra is not installed; the sentence says which extra."""


def need(module: str, extra: str) -> None:
    """MissingPackage naming the extra of setup.py that brings it, unless the module can be found; imports nothing."""
    if importlib.util.find_spec(module) is None:
        raise MissingPackage(f"{module} is not installed: install the extra, pip install -e '.[{extra}]'.")
