"""Puts scripts/ and scripts/bench/ on sys.path: import this before their modules. And a measure of tensors."""

import importlib
import sys

from paths import ROOT

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "bench")]
importlib.import_module("memory")  # a benchmark takes scripts/ off sys.path again; the package stays known


def bytes_of(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
