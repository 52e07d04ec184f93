"""Copies between host and device that do not make either wait longer than it must."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


def upload(values: Sequence, device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """A 1-D tensor on `device`; pinned memory, so that the host does not wait for work queued on a GPU."""
    host = torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


@lru_cache(maxsize=8)
def upload_once(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A float32 tensor of values that rarely change, uploaded once. Must not be modified."""
    return upload(values, device, torch.float32)
