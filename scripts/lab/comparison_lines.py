"""The lines of a comparison: what a name such as T4A4 or tree_adv changes in a recipe, at equal prompts per update."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from dataclasses import dataclass, fields

import yaml

from config.foreign import default_of
from config.grpo_config import GRPOConfig
from config.methods import SETTINGS
from task.errors import UserError

UNTRAINED = "untrained"
THOUGHTS_ANSWERS = re.compile(r"T(\d+)A(\d+)")


@dataclass(frozen=True)
class Line:
    """One line of the table: a name, and the settings that differ from the recipe's."""

    name: str
    settings: dict


def line_of(name: str, changes: dict | None = None) -> Line:
    """T{K}A{M} is grpo_ma with K thoughts and M answers; a method's name is that method; `changes` come on top.

    >>> line_of("T4A2").settings
    {'method': 'grpo_ma', 'think_num': 4, 'answer_num': 2}
    """
    changes = changes or {}
    found = THOUGHTS_ANSWERS.fullmatch(name)
    if found:
        sizes = {"think_num": int(found[1]), "answer_num": int(found[2])}
        return Line(name, {"method": "grpo_ma"} | sizes | changes)
    if name in SETTINGS:
        return Line(name, {"method": name} | changes)
    raise UserError(f"line {name!r}: write T4A4 for 4 thoughts with 4 answers, or a method: {', '.join(SETTINGS)}")


def own_line(words: list[str]) -> Line:
    """`NAME BASE key=value ...` of --line: the settings of line BASE with changes, under a name of its own."""
    if len(words) < 2 or not re.fullmatch(r"[\w.-]+", words[0]) or words[0] == UNTRAINED:
        raise UserError(f"--line {' '.join(words)}: write NAME BASE key=value ..., such as shrunk T4A4 beta=0.01")
    return Line(words[0], line_of(words[1], changes_of(words[2:])).settings)


def changes_of(words: list[str]) -> dict:
    """{key: value} of `key=value` words, values as in YAML."""
    bad = next((word for word in words if not re.fullmatch(r"\w+=.+", word, re.DOTALL)), None)
    if bad is not None:
        raise UserError(f"{bad!r} is not a setting: write key=value, such as learning_rate=1e-4")
    return {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words)}


def as_flags(settings: dict) -> list[str]:
    """Settings as flags of train.py; null keeps the default.

    >>> as_flags({"reward_weights": [0.2, 1.0], "beta": None, "environment_args": {"top_k": 3}})
    ['--reward_weights', '0.2', '1.0', '--environment_args', '{"top_k": 3}']
    """
    words = []
    for key, value in settings.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        texts = [json.dumps(one) if isinstance(one, dict) else str(one) for one in values]
        words += [f"--{key}", *texts] if texts else []
    return words


def with_defaults(settings: dict) -> Namespace:
    """The values of GRPOConfig's fields before anything is derived."""
    values = {one.name: default_of(one) for one in fields(GRPOConfig)}
    return Namespace(**values | {name: value for name, value in settings.items() if name in values})


def sizes(settings: dict) -> tuple[int, int]:
    """(leaves per prompt, tokens per completion) that these settings give."""
    args = with_defaults(settings)
    size = SETTINGS[args.method].size(args)
    derived = {name: value for name, (value, _) in size.derived.items()}
    chosen = {name: getattr(args, name) for name in ("num_generations", "max_completion_length")}
    found = size.default | {name: value for name, value in chosen.items() if value is not None} | derived
    return found["num_generations"], found["max_completion_length"]


def recipe_for(line: Line, recipe: dict, prompts: int | None) -> tuple[dict, dict]:
    """(recipe, flags) of a run of the line, with as many prompts per micro-batch as the recipe has.

    A method whose number of leaves or completion length is free takes those of the recipe.

    Args:
        prompts: per micro-batch; None: those of the recipe's own method.
    """
    base_leaves, base_length = sizes(recipe)
    prompts = prompts or (recipe.get("per_device_train_batch_size") or base_leaves) // base_leaves
    flags = dict(line.settings)
    size = SETTINGS[flags["method"]].size(with_defaults(recipe | flags))
    if flags["method"] != recipe.get("method", "grpo_ma"):
        inherited = {"num_generations": base_leaves, "max_completion_length": base_length}
        flags = {name: value for name, value in inherited.items() if name not in size.derived} | flags
        of_method = SETTINGS[flags["method"]].fields
        own = {field.name for field in fields(of_method)} if of_method else set()
        lacking = own & {"max_thought_length", "max_answer_length"} - recipe.keys() - flags.keys()
        if lacking:
            raise UserError(
                f"line {line.name}: the recipe has no {' and '.join(sorted(lacking))}: take a recipe of "
                f"{flags['method']}, or add them with --set"
            )
    leaves, _ = sizes({key: value for key, value in recipe.items() if key not in size.derived} | flags)
    return recipe, flags | {"per_device_train_batch_size": prompts * leaves}
