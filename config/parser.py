"""Recipe and flags -> dataclasses: TRL's TrlParser, made strict: every mistake is one sentence and exit status 2."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import trl
import yaml

from config.foreign import drop_foreign
from config.intervals import check_intervals
from config.short_help import short_help
from dataset.unique_keys import UniqueKeyLoader
from task.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
AUTO, AUTO_FIELDS = "auto", ("think_num", "answer_num")
PROVISIONAL = {"think_num": 4, "answer_num": 4}  # until they are chosen
DRY_RUN = {"--dry-run", "--dry_run"}
# What depends on the machine and is not looked at in a dry run; a setting that a script lacks is passed over.
OF_THE_MACHINE = {
    "use_cpu": True, "bf16": False, "fp16": False, "tf32": None, "deepspeed": None, "fsdp": None, "fsdp_config": None,
    "report_to": ["none"],
}  # fmt: skip


class RecipeParser(trl.TrlParser):
    """`--config recipe.yaml --flag value`: the recipe's keys become flags that stand before the user's own.

    So choices, types and unknown names are checked in one place, flags override the recipe, and `provenance[dest]`
    says which of the two set a value. The recipe's `env:` mapping sets environment variables, as TrlParser documents.
    Abbreviated flags are refused. `--help` prints one page, with the settings of the chosen method first, `--help all`
    every setting. `--dry-run` sets `dry_run`: settings of the machine (`OF_THE_MACHINE`) are then not checked, and for
    `auto` the provisional numbers stand.

    Args:
        choose: (the dataclass instances with provisional numbers, the names that are `auto`,
            per_device_train_batch_size as given) -> {name: number}. None: `auto` is refused.
    """

    def __init__(self, dataclass_types, choose: Callable[[tuple, list[str], int | None], dict] | None = None):
        super().__init__(dataclass_types=dataclass_types, allow_abbrev=False, conflict_handler="resolve")
        self.provenance: dict[str, str] = {}
        self.dry_run = False
        self.choose = choose
        for action in self._actions:
            if action.dest in AUTO_FIELDS:
                action.type = number_or_auto

    def parse(self, argv: Sequence[str] | None = None) -> tuple:
        """Dataclass instances in the order of the types given; ends the process with status 2 on a user's mistake."""
        argv = list(sys.argv[1:] if argv is None else argv)
        path, argv = self._take_recipe(argv)
        flags = self._as_flags(path) if path else []
        if {"-h", "--help"} & set(argv):
            self._help(flags, argv)
        self.dry_run = not DRY_RUN.isdisjoint(argv)
        argv = [word for word in argv if word not in DRY_RUN]
        for source, words in (("recipe", flags), ("flag", argv)):
            self.provenance |= {self._dest(word): source for word in words if word.startswith("--")}
        namespace, unknown = self.parse_known_args([*flags, *argv])
        unknown = [word for word in unknown if word.startswith("-")] or unknown
        if unknown:
            self.error(
                f"unknown argument {unknown[0].split('=')[0]}" + self._nearest(unknown[0].split("=")[0].lstrip("-"))
            )
        self._drop_foreign(namespace, path, flags)
        if self.dry_run:
            vars(namespace).update({name: OF_THE_MACHINE[name] for name in OF_THE_MACHINE.keys() & vars(namespace)})
        try:
            values = {a.dest: getattr(namespace, a.dest) for a in self._actions if hasattr(namespace, a.dest)}
            parsed = self.parse_dict(values | self._chosen(values), allow_extra_keys=True)
            for settings in parsed:
                check_intervals(settings, self.provenance)
            return parsed
        except ValueError as error:  # a UserError, or a setting that TRL or transformers refuses
            self.error(str(error))

    def _chosen(self, values: dict) -> dict[str, int]:
        """The numbers chosen for the settings that are `auto`."""
        names = [name for name in AUTO_FIELDS if values.get(name) == AUTO]
        if not names:
            return {}
        if self.dry_run:
            return {name: PROVISIONAL[name] for name in names}
        if self.choose is None:
            raise UserError(f"{names[0]}=auto: train.py alone probes for it; give a number")
        rows = values["per_device_train_batch_size"]
        provisional = {name: PROVISIONAL[name] for name in names} | {"per_device_train_batch_size": None}
        found = self.choose(self.parse_dict(values | provisional, allow_extra_keys=True), names, rows)
        self.provenance |= dict.fromkeys(names, "probe")
        return found

    def _help(self, recipe: list[str], argv: list[str]) -> None:
        """Prints the help of the recipe's or the flag's method, or all of it, and ends the process."""
        place = next(place for place, word in enumerate(argv) if word in ("-h", "--help"))
        if argv[place + 1 : place + 2] == ["all"]:
            self.print_help()
        else:
            words = [*recipe, *argv[:place], *argv[place + 1 :]]
            print(short_help(self, getattr(self.parse_known_args(words)[0], "method", None)))
        raise SystemExit(0)

    def _dest(self, word: str) -> str:
        """The setting that a flag names, under whichever of its names."""
        flag = word.split("=")[0]
        action = self._option_string_actions.get(flag)
        return flag[2:].replace("-", "_") if action is None else action.dest

    def _drop_foreign(self, namespace, path: str | None, flags: list[str]) -> None:
        """Drops what the recipe says for other methods than the run's, in one line of the first process."""
        if not hasattr(namespace, "method"):  # a script without methods
            return
        recipe_method = next((flag.partition("=")[2] for flag in flags if flag.startswith("--method=")), None)
        given = {name for name, source in self.provenance.items() if source == "recipe"}
        dropped = drop_foreign(namespace, given, recipe_method)
        for name in dropped:
            del self.provenance[name]
        if dropped and int(os.environ.get("RANK", "0")) == 0:
            names = ", ".join(f"{name} ({owner})" for name, owner in dropped.items())
            print(f"recipe {path}: dropped for method {namespace.method}: {names}", flush=True)

    def error(self, message: str):
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(2)

    def _take_recipe(self, argv: list[str]) -> tuple[str | None, list[str]]:
        paths, rest = [], []
        words = iter(argv)
        for word in words:
            if word == "--config":
                paths.append(next(words, None) or self.error("--config needs the path of a YAML recipe"))
            elif word.startswith("--config="):
                paths.append(word.removeprefix("--config="))
            else:
                rest.append(word)
        if len(paths) > 1:
            self.error(f"--config was given {len(paths)} times ({', '.join(paths)}): give one recipe and flags")
        return (_found(paths[0]) if paths else None), rest

    def _as_flags(self, path: str) -> list[str]:
        try:
            with open(path, encoding="utf-8") as file:
                recipe = yaml.load(file, Loader=UniqueKeyLoader)
        except (OSError, UnicodeDecodeError) as error:
            self.error(f"recipe {path} cannot be read: {getattr(error, 'strerror', 'it is not UTF-8')}")
        except yaml.YAMLError as error:
            self.error(f"recipe {path} is not valid YAML: {' '.join(str(error).split())}")
        if not isinstance(recipe, dict):
            self.error(f"recipe {path} must be a YAML mapping of names to values, got {type(recipe).__name__}")
        env = recipe.pop("env", None) or {}
        if not isinstance(env, dict) or not all(isinstance(key, str) and key for key in env):
            self.error(f"recipe {path}: env is {env!r}: make it a mapping of variable names to values")
        os.environ.update({key: str(value) for key, value in env.items()})
        known = {option: action for action in self._actions for option in action.option_strings}
        words: list[str] = []
        for key, value in recipe.items():
            if f"--{key}" not in known:
                self.error(f"recipe {path}: unknown key {key!r}{self._nearest(str(key))}")
            if value is None:
                continue  # null keeps the default
            several = known[f"--{key}"].nargs in ("+", "*")
            if isinstance(value, list) and not several:
                self.error(f"recipe {path}: {key} takes one value, got a list: {value}")
            texts = [_text(v) for v in (value if isinstance(value, list) else [value])]
            # With = a value may start with a dash.
            words += [f"--{key}", *texts] if several else [f"--{key}={texts[0]}"]
        return words

    def _nearest(self, name: str) -> str:
        names = [option[2:] for action in self._actions for option in action.option_strings if option.startswith("--")]
        match = difflib.get_close_matches(name.replace("-", "_"), names, n=1, cutoff=0.5)
        return f": did you mean {match[0]}?" if match else ": --help lists all"


def number_or_auto(text: str) -> int | str:
    """The value of a flag that may be `auto`."""
    try:
        return AUTO if text == AUTO else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is neither a whole number nor {AUTO}") from None


def _found(path: str) -> str:
    """A recipe's path, that of the shipped recipe if only the checkout has it, so that these work from any folder."""
    shipped = ROOT / path
    return str(shipped) if shipped.exists() and not Path(path).exists() else path


def _text(value) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)
