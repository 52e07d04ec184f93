"""Names of a package that are imported when they are first asked for."""

import importlib
from collections.abc import Callable, Mapping


def lazy_names(modules: Mapping[str, str]) -> Callable:
    """A package's `__getattr__` (PEP 562) for names that its modules define; `modules` is name -> module."""

    def __getattr__(name: str):
        if name not in modules:
            raise AttributeError(f"there is no {name!r} here; there are {', '.join(modules)}")
        return getattr(importlib.import_module(modules[name]), name)

    return __getattr__
