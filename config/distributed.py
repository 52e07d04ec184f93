"""DeepSpeed on a machine without accelerators: what must be set before it starts."""

from __future__ import annotations

import os
from datetime import timedelta


def launched_with_deepspeed(deepspeed_argument) -> bool:
    """Whether this process was started for DeepSpeed, by flag or by `accelerate launch --use_deepspeed`."""
    return bool(deepspeed_argument) or os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def prepare_deepspeed_on_cpu(timeout: timedelta) -> None:
    """Selects gloo and disables the shared-memory op: it takes a compiler and minutes to build, and is never called.

    `timeout` applies to collectives. accelerate sets it only when it creates the process group itself; here the group
    already exists. `__compatible_ops__` is undocumented; a contract test guards it.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if "RANK" in os.environ:
        deepspeed.init_distributed(dist_backend="gloo", timeout=timeout, verbose=False)
