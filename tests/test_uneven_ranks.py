"""Two processes with unequal work never wait for each other for ever, and end with the same weights."""

import json
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from two_processes import start
from uneven_case import SCENARIOS, prepare

CASE = str(ROOT / "tests" / "uneven_case.py")
WITHOUT_UPDATE = {"rollouts of one process failed"}  # three open thoughts that score alike may leave nothing to learn


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", "zero2", "zero3"])
def test_every_scenario_finishes_its_three_steps(tmp_path, layout):
    prepare(tmp_path)
    start([CASE, layout, str(tmp_path)], processes=2, timeout=280)  # a hang ends after the collectives' 30 s
    for name in SCENARIOS:
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["steps"] == 3, name
        assert found["finite"], name
        assert found["gap_between_processes"] == 0, name
        assert max(found["grad_norm"]) > 0 or name in WITHOUT_UPDATE, name
