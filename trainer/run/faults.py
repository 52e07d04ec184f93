"""What can go wrong inside a training step, reported in terms of the run: memory, NaN and infinity."""

from __future__ import annotations

import math

import torch
from transformers import TrainerCallback

from task.errors import UserError
from trainer.generation import Generation, Phase

# Phrases of CPU allocators, of CUDA outside of PyTorch's own allocator, and of cuBLAS without room for its workspace.
OUT_OF_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "status_alloc_failed",
)  # fmt: skip


class StepError(UserError):
    """A training step that cannot be taken; the sentence names rows, sizes and the knobs."""


class GradientCheck(TrainerCallback):
    """Stops before an optimiser step on a gradient that is not finite, or skips the step (`on_non_finite` skip).

    DeepSpeed holds the gradients itself and has stepped by the time its norm is known: then the run always stops. In
    float16 the loss scaler skips a step that overflows and halves its scale, which is counted (faults/fp16_overflow);
    only a scale below 1 means that the gradient itself is not finite.
    """

    def __init__(self, trainer):
        self.trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        trainer = self.trainer
        grads = [p.grad for p in trainer.model.parameters() if p.grad is not None]
        broken = trainer.processes.largest(int(any(not torch.isfinite(grad).all() for grad in grads)))
        scaler = trainer.accelerator.scaler
        if broken and scaler is not None and scaler.get_scale() >= 1:
            trainer.record_metrics({"faults/fp16_overflow": 1.0})
        elif broken:
            trainer.record_metrics({"faults/non_finite": 1.0})
            names = trainer.generation.record_names()
            _stop_or_skip(trainer, f"a gradient is not finite, the last records are {names}")
            trainer.model.zero_grad()

    def on_step_end(self, args, state, control, **kwargs):
        trainer = self.trainer
        if trainer.is_deepspeed_enabled:
            norm = trainer.model_wrapped.get_global_grad_norm()
            if norm is not None and not math.isfinite(norm):
                raise StepError(
                    f"step {state.global_step}: the gradient norm is {float(norm):g}, the last records are "
                    f"{trainer.generation.record_names()}: lower learning_rate and begin with the weights of the last "
                    "checkpoint (--resume CHECKPOINT --resume_weights_only true, and another output_dir)"
                )


def finite_loss(trainer, loss: torch.Tensor, model) -> torch.Tensor:
    """The loss, or one of 0 where that of any process is not finite and `on_non_finite` says to skip it.

    Processes differ in their rows, and all must take the same number of backward passes. Raises StepError otherwise.
    """
    mine = not math.isfinite(loss.detach().item())
    broken = trainer.processes.largest(int(mine))
    trainer.record_metrics({"faults/non_finite": float(broken)})
    if not broken:
        return loss
    here = f"the loss is {loss.item():g} on the records {trainer.generation.record_names()}"
    layout = trainer.layout()  # a pass that is left out has gathered no weights for another backward
    can_skip = layout["zero_stage"] != 3 and "fsdp" not in layout
    _stop_or_skip(trainer, here if mine else "the loss of another process is not finite", can_skip)
    return sum((p * 0).sum() for p in model.parameters() if p.requires_grad)


def _stop_or_skip(trainer, what: str, can_skip: bool = True) -> None:
    """Raises StepError over something that is not finite, or prints that it is left out (`on_non_finite`)."""
    where = f"step {trainer.state.global_step + 1}, process {trainer.processes.rank}: {what}"
    if trainer.args.on_non_finite == "skip" and not can_skip:
        raise StepError(f"{where}, and sharded weights cannot leave it out: lower learning_rate, or take ZeRO-2")
    if trainer.args.on_non_finite == "stop":
        raise StepError(
            f"{where}; nothing was trained on it: lower learning_rate, look at these records, or leave such "
            "micro-batches out with on_non_finite=skip"
        )
    print(f"{where}: left out", flush=True)


def memory_sentence(error: BaseException, generation: Generation | None, leaves: int, slots_of) -> str:
    """What ran out of memory, and which settings lower its need, by the phase of the generation.

    Args:
        leaves: per prompt.
        slots_of: rows -> token slots of their forward pass.
    """
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if generation is None or generation.at_hand is None:
        return (
            f"out of memory while {leaves} leaves per prompt grow ({first}): lower rollout_prompts (prompts that grow "
            "at a time), max_completion_length or max_pixels"
        )
    rows, slots = generation.at_hand, slots_of(generation.at_hand)
    if generation.phase is Phase.SCORING:
        return (
            f"out of memory in the old or reference log-probs of {len(rows)} leaves in {slots} token slots, records "
            f"{generation.record_names()} ({first}): set max_slots to about {max(slots // 2, 1)}, or lower "
            "per_device_train_batch_size, max_completion_length or max_pixels"
        )
    return (
        f"out of memory in a micro-batch of {len(rows)} leaves in {slots} token slots, records "
        f"{generation.record_names()} ({first}): set max_slots to about {max(slots // 2, 1)}, gradient_checkpointing "
        "true, or lower per_device_train_batch_size, max_completion_length or max_pixels"
    )


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch, CUDA or an allocator means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error).lower() for words in OUT_OF_MEMORY)
