"""Writes the table of model families in docs/models.md from the results of their tests.

    python scripts/bench/families.py                       # runs the tests, about 2 CPU minutes, and rewrites the table
    python scripts/bench/families.py --results junit.xml   # from what pytest --junitxml wrote

A cell is what a family's test measured, or `passed`; a test that failed or was skipped says so.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()
PAGE = ROOT / "docs" / "models.md"
TESTS = "tests/model/families"
BEGIN, END = "<!-- table: scripts/bench/families.py -->", "<!-- end of table -->"
# Column -> the beginning of its test's name.
COLUMNS = {
    "forked = dense": "test_every_leaf_of_a_forked_tree",
    "packed = dense": "test_packed_rows_have",
    "tool pictures": "test_every_leaf_has",
    "video": "test_a_tree_on_a_video",
    "frozen tower": "test_features_that_are_computed_once",
    "two steps": "test_two_steps_change",
    "saved, merged": "test_an_adapter_loads_and_merges",
    "evaluation": "test_an_evaluation_in_batches",
    "LoRA targets": "test_targets_of_lora",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, nargs="+", help="JUnit XML of the families' tests, slow ones included")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = args.results or [Path(folder) / "junit.xml"]
        if args.results is None:
            run = [sys.executable, "-m", "pytest", "-q", "-m", "", TESTS, f"--junitxml={results[0]}"]
            subprocess.run(run, cwd=ROOT, check=False)
        found = cells(results)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}", encoding="utf-8")
    bad = sorted({f"{family}: {name}" for family, row in found.items() for name, cell in row.items() if "!" in cell})
    print(f"{len(found)} families written to {PAGE}" + "".join(f"\n{line}" for line in bad))
    return 1 if bad else 0


def cells(results: list[Path]) -> dict[str, dict[str, str]]:
    """family -> column -> cell, in the order of the tests."""
    found: dict[str, dict[str, str]] = {}
    for case in (case for file in results for case in ElementTree.parse(file).getroot().iter("testcase")):
        test, _, family = case.get("name", "").partition("[")
        column = next((name for name, begin in COLUMNS.items() if test.startswith(begin)), None)
        if column is not None and family:
            found.setdefault(family.rstrip("]"), {})[column] = _cell(case)
    return found


def _cell(case: ElementTree.Element) -> str:
    for state in ("failure", "error", "skipped"):
        if case.find(state) is not None:
            return f"{state}!"
    properties = {item.get("name"): item.get("value") for item in case.iter("property")}
    if "gap" in properties:
        return f"{float(properties['gap']):.0e}"
    return properties.get("targets") or properties.get("layout") or "passed"


def table(found: dict[str, dict[str, str]]) -> str:
    names = list(COLUMNS)
    lines = [f"| model type | {' | '.join(names)} |", "| --- " * (len(names) + 1) + "|"]
    lines += [f"| `{family}` | {' | '.join(row.get(name, '-') for name in names)} |" for family, row in found.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
