"""FSDP2's sharded weights, whole while rollouts are sampled.

Sharded, every forward of a layer is a collective, and processes whose rollouts are of unequal length would wait for
each other for ever. DeepSpeed's ZeRO-3 is gathered by TRL (`unwrap_model_for_generation`).
"""

from __future__ import annotations

from contextlib import contextmanager

from torch.distributed.fsdp import FSDPModule


@contextmanager
def unsharded(model):
    """Inside the block a model under FSDP2 computes without talking; afterwards it is sharded as before."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if isinstance(model, FSDPModule):  # the part that runs first becomes the root, and rollouts call inner modules
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
