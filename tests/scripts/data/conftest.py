"""Conversions of small sources, for the tests of scripts/data/convert.py."""

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
    """Converts `content` and gives (records, report); the manifest that was written must load, media and all."""

    def call(form, content, *flags, name="source.json", status=0, source=None):
        if source is None:
            source = folder / name
            lines = "\n".join(json.dumps(one) for one in content) if name.endswith("l") else json.dumps(content)
            source.write_text(lines)
        out = folder / "out" / "records.jsonl"
        assert convert(["--format", form, str(source), str(out), *flags]) == status, capsys.readouterr()
        if status == 2:
            assert not out.exists()
            return capsys.readouterr().err
        rows = [read_row(row) for row in build_dataset(out.with_suffix(".yaml"), load_tasks())] if status == 0 else []
        for row in rows:
            load_media(row)
        report = json.loads(out.with_suffix(".report.json").read_text())
        assert report["kept"] == len(rows)
        return rows, report

    return call
