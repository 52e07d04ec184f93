"""FSDP2 on the CPU, for comparisons: accelerate shards only on accelerators, so the CPU is declared as one."""

import os
from datetime import timedelta
from pathlib import Path

import torch
import yaml
from accelerate.state import PartialState
from accelerate.utils import DistributedType

CONFIG = Path(__file__).resolve().parents[1] / "fsdp2.yaml"


def pretend(timeout: timedelta) -> None:
    """Makes trainers of this process shard as in scripts/fsdp2.yaml, over gloo."""
    settings = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["fsdp_config"]
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    for name, value in settings.items():  # as `accelerate launch` does
        os.environ[name.upper()] = str(value).lower() if isinstance(value, bool) else str(value)
    torch.distributed.init_process_group("gloo", timeout=timeout)

    def on_cpu(state):
        state.device = torch.device("cpu")

    PartialState._prepare_backend = lambda *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)
    PartialState.set_device = on_cpu
