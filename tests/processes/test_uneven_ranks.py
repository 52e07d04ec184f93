"""Two processes with unequal work never wait for each other for ever, and end with the same weights."""

import json
import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from two_processes import start
from uneven_case import SCENARIOS, prepare

CASE = str(ROOT / "tests" / "support" / "uneven_case.py")


# ZeRO-2 is what the launcher starts; the others where they talk at other moments: DDP in every forward, ZeRO-3 and
# FSDP2 in every layer (and so slowly on a CPU that the lists are short).
SOME = [
    "text and picture, vision trained",
    "picture and text, dense, vision trained",
    "video and two pictures, vision trained",
    "one process skips, the other has text",
    "cuts and pictures differ",
    "sampled rollouts of different length",
    "sampled, vision frozen, picture and text",
    "sampled, vision frozen, video and two pictures",
]
RUN = {
    "zero2": list(SCENARIOS),
    "ddp": [
        "picture and text",
        "a loss of one process is NaN",
        "rollouts of one process failed",
        "cuts of max_slots differ",
        *SOME,
    ],
    "zero3": ["picture and text", *SOME],
    "fsdp2": ["picture and text", *SOME],
}


REDRAWN = ("redraws on one process", "redraws of one prompt for all")


def check(folder, name: str) -> None:
    """The last generation holds what was drawn last for each of its prompts, on whatever process it is."""
    found = json.loads((folder / f"{name}.json").read_text())
    assert found["steps"] == 3 and found["finite"] and found["gap_between_processes"] == 0
    assert max(found["grad_norm"]) > 0
    lines = [json.loads(line) for line in (folder / name / "redraws.jsonl").read_text().splitlines()]
    drawn = {line["prompt"]: line["id"] for line in lines if line["step"] == 2}
    assert drawn
    for prompt, record in drawn.items():
        held = set(found["prompts"]) if name == REDRAWN[1] else {found["prompts"][prompt]}
        assert held == {record}


@pytest.mark.slow
def test_uneven_redraws_on_three_processes(tmp_path):
    prepare(tmp_path)
    start([CASE, "ddp", str(tmp_path), *REDRAWN], processes=3, timeout=200)
    for name in REDRAWN:
        check(tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize("layout", RUN)
def test_every_scenario_finishes_its_three_steps(tmp_path, layout):
    prepare(tmp_path)
    start([CASE, layout, str(tmp_path), *RUN[layout]], processes=2, timeout=400)  # a hang ends after TIMEOUT
    for name in RUN[layout]:
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["steps"] == 3, name
        assert found["finite"], name
        assert found["gap_between_processes"] == 0, name
        assert max(found["grad_norm"]) > 0, name
        if name in REDRAWN:
            check(tmp_path, name)
        if "growth" in name:
            assert max(found["scored"]) > 4, name
