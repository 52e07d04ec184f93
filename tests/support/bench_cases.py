"""Puts scripts/ and scripts/bench/ on sys.path: import this before their modules. And a measure of tensors."""

import sys

from paths import ROOT

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "bench")]


def bytes_of(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
