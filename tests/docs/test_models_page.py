"""docs/models.md: its table has every family, each measured within the bounds that the page states."""

import re

from family_cases import FAMILIES
from paths import ROOT

TEXT = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
TABLE = TEXT.split("<!-- table: ")[1].split("<!-- end of table -->")[0]
BOUNDS = {"forked = dense": 1e-4, "packed = dense": 5e-6, "tool pictures": 1e-4, "video": 1e-4, "saved, merged": 1e-5}


def rows() -> list[dict[str, str]]:
    header, _, *lines = re.findall(r"^\|(.+)\|$", TABLE, re.MULTILINE)
    names = [cell.strip() for cell in header.split("|")]
    return [dict(zip(names, (cell.strip(" `") for cell in line.split("|")), strict=True)) for line in lines]


def test_every_family_stands_in_the_table():
    assert [row["model type"] for row in rows()] == list(FAMILIES)


def test_what_was_measured_is_within_the_bounds():
    for row in rows():
        assert not any("!" in cell for cell in row.values()), row
        case = FAMILIES[row["model type"]]
        assert (row["packed = dense"] != "one row per leaf") == case.packed
        assert (row["video"] != "-") == case.video
        for name, bound in BOUNDS.items():
            if row[name] not in ("-", "one row per leaf"):
                assert float(row[name]) <= bound, (row, name)
