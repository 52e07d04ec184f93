"""Every path of the project that a page names exists, and every link leads somewhere."""

import re

import pytest
from paths import ROOT

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *(p for f in ("docs", "scripts", "metadata") for p in (ROOT / f).rglob("*.md"))]
)
FOLDERS = "config|dataset|docs|metadata|model|scripts|task|tests|trainer"
NAMED = re.compile(rf"(?<![\w./-])((?:{FOLDERS})/[\w./*{{}},-]*)")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
# The reader's own files, and those that a command on the page makes.
THEIRS = re.compile(r"(task|metadata)/(my_|gsm8k|grpo_sharerobot|sharerobot|hotpotqa|data/)|.*/best_of\.py$")


def named_in(text: str) -> set[str]:
    """The project's paths in a text, without the reader's own and without placeholders."""
    found = {path.rstrip(".,-") for path in NAMED.findall(text)}
    return {path for path in found if not THEIRS.match(path) and "NAME" not in path}


def exists(path: str) -> bool:
    braces = re.search(r"\{([^}]*)\}", path)
    if braces:
        return all(exists(path[: braces.start()] + one + path[braces.end() :]) for one in braces.group(1).split(","))
    return any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()


@pytest.mark.parametrize("page", PAGES)
def test_every_named_path_exists(page):
    named = named_in((ROOT / page).read_text(encoding="utf-8"))
    assert sorted(path for path in named if not exists(path)) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_file_named_without_its_folder_exists(page):
    names = re.findall(r"`([\w-]+\.(?:py|sh|md|jinja))`", (ROOT / page).read_text(encoding="utf-8"))
    ours = {path.name for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*.*")}
    ours |= {path.name for path in ROOT.glob("*.*")}
    assert sorted(set(names) - ours) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page):
    links = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith("http")]
    assert [link for link in local if not ((ROOT / page).parent / link).exists()] == []


def test_the_pages_are_read():
    assert {"README.md", "docs/design.md", "scripts/demo/README.md", "metadata/README.md"} <= set(PAGES)
    assert len(named_in((ROOT / "README.md").read_text(encoding="utf-8"))) > 20


def test_a_path_that_is_gone_is_found():
    text = "`trainer/gone.py`, `metadata/demo/{ocr,gone}/`, task/my_task.py, config/recipes/*.yaml, scripts/NAME.py."
    assert {path for path in named_in(text) if not exists(path)} == {"trainer/gone.py", "metadata/demo/{ocr,gone}/"}
