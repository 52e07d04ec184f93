"""Temporarily replaces attributes that TRL reads."""

from __future__ import annotations

from contextlib import contextmanager


@contextmanager
def swapped(owner, **values):
    """Sets these attributes of `owner` inside the block, and restores the former ones, also after an error."""
    former = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in former.items():
            setattr(owner, name, value)
