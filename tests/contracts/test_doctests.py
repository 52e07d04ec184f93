"""The examples in the packages' docstrings give what they say."""

import doctest
import importlib

import pytest
from paths import ROOT

FILES = [path.relative_to(ROOT) for name in ("config", "dataset", "model", "task", "trainer")
         for path in sorted((ROOT / name).rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=str)
def test_examples(file):
    if "vllm" in file.parts:
        pytest.importorskip("vllm")
    module = importlib.import_module(".".join(file.with_suffix("").parts))
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0
