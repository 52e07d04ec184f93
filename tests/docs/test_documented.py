"""The pages name every setting of ours, with the default that the code has."""

import dataclasses
import re

import pytest
from paths import ROOT

from config.grpo_config import METHOD_FIELDS, GRPOConfig
from config.model_config import GRPOModelConfig
from config.script_arguments import GRPOScriptArguments

OURS = (GRPOScriptArguments, GRPOConfig, *METHOD_FIELDS, GRPOModelConfig)
CANNOT_BE_SET = {"router_aux_loss_coef"}
FIELDS = {field.name: field for owner in OURS for field in dataclasses.fields(owner)}
KNOBS = (ROOT / "scripts" / "README.md").read_text(encoding="utf-8")
PAGES = "\n".join([KNOBS, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))])


def names_of(name: str) -> list[str]:
    return [name, *(alias.lstrip("-") for alias in FIELDS[name].metadata.get("aliases", ()))]


def test_every_setting_stands_on_a_page():
    own = {name for owner in OURS for name in owner.__annotations__ if not name.startswith("_")} - CANNOT_BE_SET
    missing = [name for name in sorted(own) if not any(re.search(rf"\b{word}\b", PAGES) for word in names_of(name))]
    assert missing == []


def rows() -> list[tuple[str, str]]:
    """(setting, default as the page has it) of the rows of scripts/README.md on flags of train.py."""
    found = []
    for row in re.findall(r"^\|(.+)\|$", KNOBS.partition("What it trains")[2].partition("\n## ")[0], re.MULTILINE):
        cells = [cell.strip() for cell in row.split(" | ")]
        flags, cell = (cells[0], cells[1]) if cells[0].startswith("`--") else (cells[1], cells[2])
        names = re.findall(r"`--(\w+)`", flags)
        defaults = cell.replace("`", "").split(", ") if len(names) > 1 else [cell.replace("`", "")]
        if len(defaults) == len(names):
            found += [pair for pair in zip(names, defaults, strict=True) if pair[0] in FIELDS]
    return found


def test_the_rows_are_read():
    assert len(rows()) > 30
    assert ("lora_alpha", "128") in rows()


@pytest.mark.parametrize(("name", "shown"), rows(), ids=[name for name, _ in rows()])
def test_the_default_on_the_page(name, shown):
    default = FIELDS[name].default
    if default is None or default is dataclasses.MISSING:  # none, or derived
        return
    if isinstance(default, bool):
        assert shown.split()[0] == str(default).lower()
    elif isinstance(default, str):
        assert shown.split(",")[0] == default
    else:
        assert float(shown.split()[0]) == default
