"""Settings of other methods than the run's are refused, unless they come from a recipe, which methods may share."""

from __future__ import annotations

import difflib
from collections.abc import Set
from dataclasses import MISSING, Field

from config.methods import SETTINGS
from task.errors import UserError

# Field -> the methods that read it.
OWNERS: dict[str, list[str]] = {}
for _method, _settings in SETTINGS.items():
    for _name in _settings.fields.__dataclass_fields__ if _settings.fields else ():
        OWNERS.setdefault(_name, []).append(_method)


def default_of(field: Field):
    """The default value of a dataclass field."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def check_foreign(args) -> None:
    """Raises UserError for the first field of another method that differs from its default."""
    for name, owners in OWNERS.items():
        value = getattr(args, name)
        if args.method not in owners and value != default_of(args.__dataclass_fields__[name]):
            raise UserError(
                f"{name}={value!r} is a setting of {' and '.join(owners)}, and {args.method} does not read it: "
                + (f"did you mean {near}?" if (near := _near(name, args.method)) else "leave it out")
            )


def drop_foreign(args, given: Set[str], recipe_method: str | None) -> dict[str, str]:
    """Resets values that a recipe gave for another method, and returns name -> the methods that read it.

    Args:
        args: the parsed values; `args.method` is the run's method.
        given: names whose value is the recipe's.
        recipe_method: the method that the recipe names. If it is not the run's, the recipe's sizes are reset as
            well if the run's method derives them.
    """
    dropped = {}
    for name, owners in OWNERS.items():
        if name in given and args.method not in owners:
            setattr(args, name, default_of(SETTINGS[owners[0]].fields.__dataclass_fields__[name]))
            dropped[name] = " and ".join(owners)
    if recipe_method not in (None, args.method):
        for name in given & SETTINGS[args.method].size(args).derived.keys():
            setattr(args, name, None)
            dropped[name] = recipe_method
    return dropped


def _near(name: str, method: str) -> str | None:
    """The field of a method whose words are nearly those of `name`, in any order: tree_num -> num_trees."""
    own = {_words(one): one for one, owners in OWNERS.items() if method in owners}
    match = difflib.get_close_matches(_words(name), own, n=1, cutoff=0.85)
    return own[match[0]] if match else None


def _words(name: str) -> str:
    return " ".join(sorted(name.split("_")))
