"""The notebook runs from top to bottom on a CPU, and what it shows is a run's."""

import os

import pytest
from paths import ROOT

nbformat = pytest.importorskip("nbformat")
NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"


def read():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_stored_without_outputs():
    nbformat.validate(read())
    assert all(not cell.outputs and cell.execution_count is None for cell in read().cells if cell.cell_type == "code")


@pytest.mark.slow
def test_it_runs(monkeypatch):
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}.items():
        monkeypatch.setitem(os.environ, name, value)
    notebook = read()
    client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT / "docs")}}).execute()
    said = "\n".join(out.text for cell in notebook.cells for out in cell.get("outputs", []) if "text" in out)
    assert "tokens as a tree" in said
    assert "-> " in said, "metrics before and after"
    assert "adapter_model.safetensors" in said
    assert "'README.md'" in said
