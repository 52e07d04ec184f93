"""Unshards FSDP2 weights while rollouts are sampled.

With sharded weights every forward pass of a layer is a collective, so processes with rollouts of different lengths
would deadlock. For DeepSpeed's ZeRO-3, TRL gathers the weights (`unwrap_model_for_generation`).
"""

from __future__ import annotations

from contextlib import contextmanager

from torch.distributed.fsdp import FSDPModule


@contextmanager
def unsharded(model):
    """Inside the block a model under FSDP2 runs without communication; afterwards it is sharded as before."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if isinstance(model, FSDPModule):  # else the first inner module that rollouts call would become the root
        model._get_fsdp_state()._lazy_init()
    try:
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True, recurse=False)
