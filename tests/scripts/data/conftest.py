"""Conversions of small sources, for the tests of scripts/data/convert.py."""

import itertools
import json
import runpy

import pytest
from paths import ROOT
from PIL import Image

from dataset.dataset_grpo import build_dataset, load_media, read_row
from task.task_loader import load_tasks


@pytest.fixture(scope="session")
def convert():
    """main of scripts/data/convert.py."""
    return runpy.run_path(str(ROOT / "scripts" / "data" / "convert.py"))["main"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for name, size in {"456.jpg": (640, 480), "a.jpg": (640, 480), "b.jpg": (320, 240)}.items():
        Image.new("RGB", size, (90, 90, 90)).save(tmp_path / "images" / name)
    return tmp_path


@pytest.fixture
def run(convert, folder, capsys):
    """Converts `content` and gives (records, report); the manifest that was written must load, media and all.

    For status 1, when nothing is kept and nothing may be left, the report has what was printed: the kinds of refusals.
    """

    numbers = itertools.count()

    def call(form, content, *flags, name="source.json", status=0, source=None):
        if source is None:
            source = folder / name
            lines = "\n".join(json.dumps(one) for one in content) if name.endswith("l") else json.dumps(content)
            source.write_text(lines)
        out = folder / f"out{next(numbers)}" / "records.jsonl"
        assert convert(["--format", form, str(source), str(out), *flags]) == status, capsys.readouterr()
        said = capsys.readouterr()
        if status:
            assert not out.parent.exists()
        if status == 2:
            return said.err
        if status == 1:
            refused = [line.partition("refused  ")[2] for line in said.out.splitlines() if line.startswith("  refused")]
            return [], {"kept": 0, "refusals": refused}
        rows = [read_row(row) for row in build_dataset(out.with_suffix(".yaml"), load_tasks())]
        for row in rows:
            load_media(row)
        report = json.loads(out.with_suffix(".report.json").read_text())
        assert report["kept"] == len(rows)
        assert {path.name for path in out.parent.iterdir()} - {f"{out.stem}_pictures"} == {
            f"{out.stem}{ending}" for ending in (".jsonl", ".yaml", ".report.json")
        }
        return rows, report

    return call
