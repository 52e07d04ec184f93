"""The bare policy with whole weights, in eval mode and without gradients."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from trl.models.utils import disable_gradient_checkpointing, unwrap_model_for_generation

from trainer.engines.unsharded import unsharded


@contextmanager
def whole_policy(trainer):
    """Yields the bare policy (a PEFT model with its adapter); all is restored, also after an error.

    All processes enter together, since sharded weights are gathered.
    """
    model, training = trainer.model, trainer.model.training
    checkpointing = disable_gradient_checkpointing(model, trainer.args.gradient_checkpointing_kwargs)
    unwrapped = unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator)
    model.eval()
    try:
        with (
            checkpointing,
            unwrapped as bare,
            unsharded(trainer.model_wrapped),
            torch.no_grad(),
            trainer.accelerator.autocast(),
        ):
            yield bare
    finally:
        model.train(training)
