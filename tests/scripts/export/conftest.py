"""What the tests of exports share: the command, and a folder exported once."""

import runpy
import shutil

import pytest
from paths import ROOT

DEMO = ROOT / "metadata" / "demo"
RECORDS = {"trajectory": 2, "ocr": 2, "math": 1}  # pictures in the model's frame, words about pictures, no picture


@pytest.fixture(scope="session")
def export():
    """main of export.py."""
    main = runpy.run_path(str(ROOT / "scripts" / "export" / "export.py"))["main"]
    return lambda *words: main([str(word) for word in words])


@pytest.fixture(scope="session")
def manifest(tmp_path_factory):
    """A manifest of the first test records of three demos; two pictures are of sizes that the processor changes."""
    folder = tmp_path_factory.mktemp("records")
    sources = []
    for name, count in RECORDS.items():
        lines = (DEMO / name / "test.jsonl").read_text(encoding="utf-8").splitlines()[:count]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        sources.append(f"- json_path: {name}.jsonl\n  data_root: {DEMO / name}\n")
    (folder / "test.yaml").write_text("datasets:\n" + "".join(sources))
    return folder / "test.yaml"


@pytest.fixture(scope="session")
def for_lmms_eval(export, manifest, tiny_model_dir, tmp_path_factory):
    """The tiny model and the manifest, exported to lmms-eval with picture limits of the run's own."""
    out = tmp_path_factory.mktemp("exported") / "lmms"
    model = ("--model_name_or_path", tiny_model_dir, "--max_pixels", 7056, "--min_pixels", 3136)
    assert export("lmms-eval", *model, "--dataset", manifest, "--max_new_tokens", 64, "--output_dir", out) == 0
    return out


@pytest.fixture
def model_copy(tiny_model_dir, tmp_path):
    """Makes a copy of the tiny model with changed text in one of its files."""

    def make(file: str, *changes: tuple[str, str]):
        folder = shutil.copytree(tiny_model_dir, tmp_path / "model_copy")
        text = (folder / file).read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / file).write_text(text, encoding="utf-8")
        return folder

    return make
