"""Packages and services that only some tasks need: a missing one is reported when it is used, and every task loads."""

import importlib.util

from task.errors import UserError


class Unavailable(UserError):
    """Something that only some tasks need is missing; the message says how to get it."""


class MissingPackage(Unavailable):
    """A package of an extra is not installed; the message names the extra."""


def need(module: str, extra: str) -> None:
    """Raises MissingPackage, with the extra of setup.py that installs it, if a module is not found. Imports nothing."""
    if importlib.util.find_spec(module) is None:
        raise MissingPackage(f"{module} is not installed: install the extra, pip install -e '.[{extra}]'.")
