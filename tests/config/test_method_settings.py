"""Settings files of methods: what they name exists, what they declare is checked, and they import no trainer module."""

import dataclasses
import subprocess
import sys

import pytest

from config.grpo_config import GRPOConfig
from config.method_settings import discovered
from config.methods import SETTINGS
from trainer.advantages.intra_inter import PARTS
from trainer.advantages.redistribute import AGGREGATIONS
from trainer.advantages.reinforce_plus_plus import BASELINES
from trainer.advantages.turn_value import BASELINES as TURN_BASELINES
from trainer.methods import METHODS
from trainer.policies.entropy.rules import RULES

FIELDS = GRPOConfig.__dataclass_fields__


def test_every_method_has_settings_and_a_row_of_the_table():
    assert set(SETTINGS) == set(METHODS)


def test_the_choices_are_what_the_trainer_implements():
    implemented = {"fork_rule": RULES, "aggregation": AGGREGATIONS, "advantage": PARTS}
    implemented |= {"reward_baseline": BASELINES, "turn_baseline": TURN_BASELINES}
    assert {name: FIELDS[name].metadata["choices"] for name in implemented} == {
        name: list(names) for name, names in implemented.items()
    }


@pytest.mark.parametrize("method", SETTINGS)
def test_what_a_settings_file_names_are_fields(method):
    settings = SETTINGS[method]
    own = {field.name for field in dataclasses.fields(settings.fields)} if settings.fields else set()
    assert set(settings.shown) | set(settings.at_least) <= own
    assert set(settings.preset) <= set(FIELDS) - own
    assert all(FIELDS[name].default is None for name in settings.preset)


@pytest.mark.parametrize(("method", "name"), [(m, name) for m in SETTINGS for name in SETTINGS[m].at_least])
def test_a_field_below_its_least_value_is_refused(tmp_path, method, name):
    least = SETTINGS[method].at_least[name]
    with pytest.raises(ValueError, match=f"^{name}={least - 1} must be at least {least}$"):
        GRPOConfig(output_dir=str(tmp_path), method=method, **{name: least - 1})


def test_a_field_belongs_to_one_method(tmp_path, monkeypatch):
    package = tmp_path / "two_methods"
    package.mkdir()
    (package / "__init__.py").touch()
    lines = (
        "from dataclasses import dataclass",
        "from config.method_settings import MethodSettings, RolloutSize",
        "@dataclass",
        "class Fields:",
        "    width: int = 2",
        "SETTINGS = MethodSettings(about='', preset={}, size=lambda args: RolloutSize(), fields=Fields)",
    )
    for name in ("first", "second"):
        (package / f"{name}.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AssertionError, match="width is a field of first and second"):
        discovered("two_methods", [str(package)])


def test_they_import_neither_the_trainer_nor_torch():
    code = "import sys, config.methods; print([m for m in ('trainer', 'torch', 'trl', 'model') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
