"""Arguments of a tool call: the text of a tag or a JSON object, checked against the tool's type hints."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

JSON_TYPES = {kind.__name__: kind for kind in (str, int, float, bool, list, dict, NoneType)}


def bind_arguments(tool: Callable, arguments: dict | str) -> dict:
    """The arguments by name, checked against the type hints.

    A text becomes the argument that `argument_of` names; if that is not a str, the text is parsed as JSON. Raises
    TypeError or ValueError saying what is wrong. Hints without a JSON type, such as classes, are not checked.
    """
    parameters = inspect.signature(tool).parameters
    hints = {name: types_of(annotation) for name, annotation in annotations_of(tool).items()}
    if isinstance(arguments, str):
        name = argument_of(tool)
        arguments = {name: arguments if str in (hints[name] or {str}) else _parsed(arguments)}
    inspect.signature(tool).bind(**arguments)
    for name, value in arguments.items():
        wanted = hints[name] if name in parameters else set()
        if wanted and type(value) not in wanted:
            names = " or ".join(sorted(kind.__name__ for kind in wanted))
            raise TypeError(f"{name} must be {names}, not {type(value).__name__}")
    return arguments


def argument_of(tool: Callable) -> str:
    """Name of the argument that a tag fills: the only one without a default. TypeError if there is not exactly one."""
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(tool).parameters.items()
    needed = [name for name, one in parameters if one.default is one.empty and one.kind not in rest]
    if len(needed) != 1:
        raise TypeError(f"it needs {len(needed)} arguments, and a tag holds one")
    return needed[0]


def annotations_of(tool: Callable) -> dict[str, Any]:
    """The hints by parameter. Postponed annotations are evaluated; if one cannot be, all are left as they are."""
    try:
        parameters = inspect.signature(tool, eval_str=True).parameters
    except Exception:  # of any type: a hint may refer to a name that only type checkers import
        parameters = inspect.signature(tool).parameters
    return {name: one.annotation for name, one in parameters.items()}


def types_of(annotation) -> set[type]:
    """The types of JSON values that a hint admits; empty if it admits anything.

    >>> sorted(kind.__name__ for kind in types_of(list[int] | None)), types_of(object)
    (['NoneType', 'list'], set())
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        each = [types_of(part) for part in parts]
        return set().union(*each) if all(each) else set()
    if origin is Annotated:
        return types_of(parts[0])
    if origin is Literal:
        return {type(part) for part in parts}
    if isinstance(annotation, str):
        annotation = JSON_TYPES.get(annotation)
    kind = next((kind for kind in JSON_TYPES.values() if kind in (annotation, origin)), None)
    return set() if kind is None else {kind, int} if kind is float else {kind}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
