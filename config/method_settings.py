"""What the settings file of a method declares, and how its preset and sizes are applied to the arguments of a run."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from task.errors import UserError

# Of fields that most methods' presets leave out.
USUAL = {
    "scale_rewards": "group",
    "shared_token_weight": "per_leaf",
    "importance_sampling_level": "token",
    "epsilon": 0.2,
}


@dataclass(frozen=True)
class RolloutSize:
    """Leaves per prompt (`num_generations`) and tokens per completion (`max_completion_length`).

    Attributes:
        derived: field -> (value, the rule it follows), which cannot be set.
        default: field -> value, which can.
    """

    derived: dict[str, tuple[int, str]] = field(default_factory=dict)
    default: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodSettings:
    """The settings of one method; `config/methods/NAME.py` declares those of method NAME as `SETTINGS`.

    Attributes:
        about: what one prompt's rollouts are, in a few words, for the help of --method.
        preset: field -> value, for fields that were left None; those of `USUAL` may be left out.
        size: args -> RolloutSize. `args` is a GRPOConfig whose defaults are not derived yet, as in `check`.
        check: args -> None; raises UserError, one sentence, for the first setting that the method does not support.
        fields: dataclass of the method's own fields, which GRPOConfig inherits; None: it has none.
        at_least: own field -> its lower bound.
        shown: own fields printed in the start-up table.
        extends: whether complete trees can get further leaves (`on_zero_spread grow`).
    """

    about: str
    preset: dict[str, Any]
    size: Callable[[Any], RolloutSize]
    check: Callable[[Any], None] = lambda args: None
    fields: type | None = None
    at_least: dict[str, int] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    extends: bool = False

    @property
    def choices(self) -> list[str]:
        """The own fields that take one of a few names."""
        return [one.name for one in fields(self.fields) if "choices" in one.metadata] if self.fields else []


def discovered(package: str, path: Iterable[str]) -> dict[str, MethodSettings]:
    """Method name -> settings, one per module of the package. Methods share a field only by inheriting it."""
    names = sorted(module.name for module in pkgutil.iter_modules(path))
    found = {name: importlib.import_module(f"{package}.{name}").SETTINGS for name in names}
    owners: dict[str, tuple[Any, str]] = {}
    for name, settings in found.items():
        for one in fields(settings.fields) if settings.fields else ():
            first, method = owners.setdefault(one.name, (one, name))
            assert first is one, f"{one.name} is a field of {method} and {name}"
    return found


def apply_preset(args, preset: dict[str, Any]) -> list[str]:
    """Sets the fields that are None to the preset's values (else to `USUAL`), and returns the names it set."""
    preset = USUAL | preset
    names = [name for name in preset if getattr(args, name) is None]
    for name in names:
        setattr(args, name, preset[name])
    return names


def apply_size(args, size: RolloutSize) -> str:
    """Sets `num_generations` and `max_completion_length`, and returns the rule that gives the number of leaves.

    Raises UserError where a derived field was set to another value.
    """
    for name, (value, rule) in size.derived.items():
        if getattr(args, name) not in (None, value):
            raise UserError(
                f"{name}={getattr(args, name)}, but {args.method} derives {value} from {rule}: leave {name} out"
            )
        setattr(args, name, value)
    for name, value in size.default.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return size.derived.get("num_generations", (0, f"num_generations={args.num_generations}"))[1]


def check_at_least(args, least: dict[str, int]) -> None:
    """Raises UserError for the first of these fields that is below its lower bound, or NaN; None passes."""
    for name, bound in least.items():
        value = getattr(args, name)
        if value is not None and not value >= bound:
            raise UserError(f"{name}={value} must be at least {bound}")
