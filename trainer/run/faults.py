"""Faults inside a training step, reported in terms of the run: out of memory, NaN, infinity."""

from __future__ import annotations

import math

import torch
from transformers import TrainerCallback

from task.errors import UserError
from trainer.generation import Generation, Phase

# Messages of CPU allocators, of CUDA outside PyTorch's own allocator, and of cuBLAS without memory for its workspace.
OUT_OF_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "status_alloc_failed",
)  # fmt: skip


class StepError(UserError):
    """A training step that cannot be taken; the message names the rows, the sizes and the relevant settings."""


class GradientCheck(TrainerCallback):
    """Stops the run before an optimiser step with a non-finite gradient, or skips the step (`on_non_finite` skip).

    DeepSpeed manages the gradients itself and has stepped by the time the norm is known, so the run always stops there.
    In float16 the loss scaler skips a step that overflows and halves its scale, which is counted
    (faults/fp16_overflow); only a scale below 1 means that the gradient itself is not finite.
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
    """The loss, or 0 if it is not finite on any process and `on_non_finite` is "skip"; otherwise raises StepError.

    Processes have different rows, but all must make the same number of backward passes.
    """
    mine = not math.isfinite(loss.detach().item())
    broken = trainer.processes.largest(int(mine))
    trainer.record_metrics({"faults/non_finite": float(broken)})
    if not broken:
        return loss
    here = f"the loss is {loss.item():g} on the records {trainer.generation.record_names()}"
    layout = trainer.layout()  # under sharding, a skipped pass has gathered no weights for its backward
    can_skip = layout["zero_stage"] != 3 and "fsdp" not in layout
    _stop_or_skip(trainer, here if mine else "the loss of another process is not finite", can_skip)
    return sum((p * 0).sum() for p in model.parameters() if p.requires_grad)


def _stop_or_skip(trainer, what: str, can_skip: bool = True) -> None:
    """Raises StepError for a non-finite value, or prints that it is skipped, according to `on_non_finite`."""
    where = f"step {trainer.state.global_step + 1}, process {trainer.processes.rank}: {what}"
    if trainer.args.on_non_finite == "skip" and not can_skip:
        raise StepError(f"{where}, and it cannot be skipped with sharded weights: lower learning_rate, or use ZeRO-2")
    if trainer.args.on_non_finite == "stop":
        raise StepError(
            f"{where}; nothing was trained on it: lower learning_rate, check these records, or skip such "
            "micro-batches with on_non_finite=skip"
        )
    print(f"{where}: skipped", flush=True)


def memory_sentence(error: BaseException, generation: Generation | None, leaves: int, slots_of) -> str:
    """What ran out of memory, and the settings that reduce its use, according to the phase of the generation.

    Args:
        leaves: per prompt.
        slots_of: rows -> number of token slots of their forward pass.
    """
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if generation is None or generation.current_rows is None:
        return (
            f"out of memory while sampling {leaves} leaves per prompt ({first}): lower rollout_prompts (prompts rolled "
            "out at a time), max_completion_length or max_pixels"
        )
    rows, slots = generation.current_rows, slots_of(generation.current_rows)
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
    """Whether an error of torch, CUDA or an allocator means out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error).lower() for words in OUT_OF_MEMORY)
