"""Packages that only some tasks need: missing ones are one sentence at the moment of use, so that every task loads."""

import importlib
from types import ModuleType


class MissingPackage(ValueError):
    """A package of an extra is not installed; the sentence says which extra."""


def need(module: str, extra: str) -> ModuleType:
    """The imported module, or MissingPackage naming the extra of setup.py that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage(
            f"{module} cannot be imported ({error}): install the extra, pip install -e '.[{extra}]'."
        ) from error
