"""What a vLLM engine must hold, and what it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """
    Args:
        max_length: tokens of the longest prompt and completion.
        rows: most requests that run at a time; further ones wait.
        memory: share of the device's memory for weights, keys and values (of the machine's, without a device).
    """

    max_length: int
    rows: int = 256
    memory: float = 0.3
