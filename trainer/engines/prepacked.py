"""Linear layers on weights that oneDNN packed once, while rollouts are sampled on a CPU.

A decode step multiplies a few rows by every weight matrix, and a float32 product in the usual layout packs the matrix
anew in each call: for 4 to 16 rows that is half of its time.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

# With 4 rows, packing makes a matrix of 512 x 512 1.7 times as fast, one of 128 x 512 no faster, one of 64 x 64 slower.
SMALLEST = 2**18
# The packed weights are a second copy, so models beyond 4 GiB of float32 are left as they are.
LARGEST = 2**30


@contextmanager
def prepacked(model):
    """Inside the block, large float32 linear layers on a CPU compute from packed copies of their weights.

    Results differ from those of `torch.nn.functional.linear` by rounding alone. The weights must not change inside the
    block, and no gradients pass through the layers. Layers of other types, data types and devices are left alone, and
    so are models of more than `LARGEST` such weights.
    """
    layers = [layer for layer in model.modules() if _can_pack(layer)]
    if sum(layer.weight.numel() for layer in layers) > LARGEST or torch.is_autocast_enabled("cpu"):
        layers = []
    try:
        for layer in layers:
            layer.forward = partial(_linear, packed=_pack(layer.weight.detach()), bias=layer.bias)
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def _can_pack(layer) -> bool:
    if type(layer) is not nn.Linear or "forward" in vars(layer) or not torch.backends.mkldnn.is_available():
        return False
    weight = layer.weight
    plain = type(weight) is nn.Parameter and weight.dtype == torch.float32 and not hasattr(weight, "ds_id")
    return plain and weight.device.type == "cpu" and weight.numel() >= SMALLEST


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def _linear(inputs: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")
