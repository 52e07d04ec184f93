"""The engine that samples a trainer's rollouts, on weights that are whole, merged and in eval mode."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from trl.models.utils import disable_gradient_checkpointing, unwrap_model_for_generation

from trainer.engines.merged_lora import merged_lora
from trainer.engines.prepacked import prepacked
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.engines.unsharded import unsharded


@contextmanager
def generating(trainer, temperature: float):
    """An engine on the bare policy, without gradients and checkpointing; all is restored, also after an error.

    Args:
        trainer: a GRPOMATrainer.
        temperature: 0 is greedy.
    """
    model, args, training = trainer.model, trainer.args, trainer.model.training
    top_k, min_p = trainer.top_k, trainer.min_p or 0.0
    sampling = Sampling(temperature, top_k, trainer.top_p, min_p, trainer.repetition_penalty)
    checkpointing = disable_gradient_checkpointing(model, args.gradient_checkpointing_kwargs)
    unwrapped = unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator)
    model.eval()
    try:
        with (
            checkpointing,
            unwrapped as bare,
            unsharded(trainer.model_wrapped),
            torch.no_grad(),
            trainer.accelerator.autocast(),
            merged_lora(bare),
            prepacked(bare),
        ):
            yield TransformersEngine(
                bare,
                trainer.module,
                trainer._tokenizer,
                sampling,
                eos_ids=trainer.eos_token_ids,
                forbidden_ids=trainer.module.forbidden_token_ids(trainer.processing_class),
                max_prompts=args.rollout_prompts,
            )
    finally:
        model.train(training)
