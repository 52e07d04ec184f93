"""What can go wrong inside a training step, told in terms of the run: memory, and numbers that are none."""

from __future__ import annotations

import math

import torch
from transformers import TrainerCallback

from task.errors import UserError

# Words of CPU allocators, of CUDA outside of PyTorch's own allocator, and of cuBLAS that has no room for its workspace.
OUT_OF_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "status_alloc_failed",
)  # fmt: skip


class StepError(UserError):
    """A training step that cannot be taken; the sentence names rows, sizes and the knobs."""


class GradientCheck(TrainerCallback):
    """Stops before an optimiser step on a gradient that is not finite, or takes none (`on_non_finite` skip).

    DeepSpeed holds the gradients itself and has stepped by the time its norm is known: then the run always stops.
    """

    def __init__(self, trainer):
        self.trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        trainer = self.trainer
        grads = [p.grad for p in trainer.model.parameters() if p.grad is not None]
        broken = trainer._largest(int(any(not torch.isfinite(grad).all() for grad in grads)))
        if broken:
            trainer._metrics["train"]["faults/non_finite"].append(1.0)
            trainer._stop_or_say(f"a gradient is not finite, the last records are {trainer._record_names()}")
            trainer.model.zero_grad()

    def on_step_end(self, args, state, control, **kwargs):
        trainer = self.trainer
        if trainer.is_deepspeed_enabled:
            norm = trainer.model_wrapped.get_global_grad_norm()
            if norm is not None and not math.isfinite(norm):
                raise StepError(
                    f"step {state.global_step}: the gradient norm is {float(norm):g}, the last records are "
                    f"{trainer._record_names()}: lower learning_rate and begin with the weights of the last checkpoint "
                    "(--resume CHECKPOINT --resume_weights_only true, and another output_dir)"
                )


class StepFaults:
    """The part of GRPOMATrainer around a training step; stands before `trl.GRPOTrainer` in the order of classes.

    A loss or gradient that is not finite stops the run (`on_non_finite` stop) or leaves that micro-batch out (skip);
    `faults/non_finite` counts the micro-batches left out. With weights that are sharded (ZeRO-3, FSDP) a loss always
    stops it.
    """

    def training_step(self, model, inputs, num_items_in_batch=None):
        self._active_rows = None
        try:
            return super().training_step(model, inputs, num_items_in_batch)
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
            raise StepError(self._memory_sentence(error)) from error

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        # Processes differ in their rows, and all must take the same number of backward passes.
        mine = not math.isfinite(loss.detach().item())
        broken = self._largest(int(mine))
        self._metrics["train"]["faults/non_finite"].append(float(broken))
        if not broken:
            return loss
        here = f"the loss is {loss.item():g} on the records {self._record_names()}"
        layout = self.layout()  # the pass that is left out has gathered no weights for another backward
        can_skip = layout["zero_stage"] != 3 and "fsdp" not in layout
        self._stop_or_say(here if mine else "the loss of another process is not finite", can_skip)
        return sum((p * 0).sum() for p in model.parameters() if p.requires_grad)

    def _stop_or_say(self, what: str, can_skip: bool = True) -> None:
        where = f"step {self.state.global_step + 1}, process {self.accelerator.process_index}: {what}"
        if self.args.on_non_finite == "skip" and not can_skip:
            raise StepError(f"{where}, and sharded weights cannot leave it out: lower learning_rate, or take ZeRO-2")
        if self.args.on_non_finite == "stop":
            raise StepError(
                f"{where}; nothing was trained on it: lower learning_rate, look at these records, or leave such "
                "micro-batches out with on_non_finite=skip"
            )
        print(f"{where}: left out", flush=True)

    def _memory_sentence(self, error: BaseException) -> str:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if self._active_rows is None:
            return (
                f"out of memory while {self.args.leaves} leaves a prompt grow ({first}): lower rollout_prompts "
                "(prompts that grow at a time), max_completion_length or max_pixels"
            )
        slots = self.forward.slots(self._active_rows)
        return (
            f"out of memory in a micro-batch of {len(self._active_rows)} leaves in {slots} token slots, records "
            f"{self._record_names()} ({first}): set max_slots to about {max(slots // 2, 1)}, gradient_checkpointing "
            "true, or lower per_device_train_batch_size, max_completion_length or max_pixels"
        )

    def _record_names(self) -> str:
        """Ids of the records in the micro-batch at hand."""
        rows = self._active_rows or range(len(self._rollout.row_tree))
        found = dict.fromkeys(self._rollout.trees[self._rollout.row_tree[row]].prompt_id for row in rows)
        return ", ".join(list(found)[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error).lower() for words in OUT_OF_MEMORY)
