"""Where tests lie: in folders that mirror the source, each file under a name of its own."""

from collections import Counter

from paths import ROOT

TESTS = ROOT / "tests"
OWN = {"contracts", "processes", "docs", "support", "train"}  # train: tests of train.py; the others mirror no package


def test_every_folder_of_tests_has_a_counterpart_in_the_source():
    folders = {file.parent.relative_to(TESTS) for file in TESTS.rglob("*.py")}
    mirrors = [folder for folder in folders if folder.parts and folder.parts[0] not in OWN]
    missing = [f for f in mirrors if not (ROOT / f).is_dir() and not (ROOT / f).with_suffix(".py").is_file()]
    assert missing == []


def test_base_names_are_unique_since_no_folder_is_a_package():
    names = Counter(file.name for file in TESTS.rglob("*.py") if file.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
    assert "__init__.py" not in names


def test_no_helper_of_tests_has_the_name_of_a_script():
    """Both are imported by their bare names, and some tests import both kinds."""
    helpers = {file.name for file in (TESTS / "support").rglob("*.py")}
    assert helpers & {file.name for file in (ROOT / "scripts").rglob("*.py")} == set()


def test_only_the_fixtures_lie_flat():
    assert [file.name for file in TESTS.glob("*.py")] == ["conftest.py"]


def test_no_test_imports_from_another_test():
    users = [file for file in TESTS.rglob("*.py") if "\nfrom test_" in file.read_text(encoding="utf-8")]
    assert users == [], "what several tests share belongs in tests/support"
