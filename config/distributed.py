"""DeepSpeed on a machine without accelerators: what must be said before it starts."""

from __future__ import annotations

import os
from datetime import timedelta


def launched_with_deepspeed(deepspeed_argument) -> bool:
    """Whether this process was started for DeepSpeed, by flag or by `accelerate launch --use_deepspeed`."""
    return bool(deepspeed_argument) or os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def prepare_deepspeed_on_cpu(timeout: timedelta) -> None:
    """gloo as the backend, and no shared-memory op: compiling it takes minutes and a compiler, training never calls it.

    `timeout` is of collectives: accelerate sets it where it starts the process group itself, and here it finds one.
    `__compatible_ops__` is not documented: a contract test reads it.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if "RANK" in os.environ:
        deepspeed.init_distributed(dist_backend="gloo", timeout=timeout, verbose=False)
