"""Number of processes and their sharding, checked against what the launcher requested."""

from __future__ import annotations

import os

from transformers import TrainerCallback

from task.errors import UserError


class LayoutCheck(TrainerCallback):
    """Prints the number of processes and their sharding, and fails if the launcher requested something else.

    A wrong launch would otherwise go unnoticed: one process instead of two, or no DeepSpeed.
    """

    def __init__(self, trainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        accelerator, wrapped = self.trainer.accelerator, self.trainer.model_wrapped
        layout = [f"{accelerator.num_processes} process(es) on {accelerator.device.type}", type(wrapped).__name__]
        assert accelerator.num_processes == args.world_size
        if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and not self.trainer.is_fsdp_enabled:
            raise UserError(
                f"FSDP was requested, but it shards over accelerators only and this runs on {accelerator.device.type}: "
                "use ZeRO (DEEPSPEED_CONFIG) or plain data parallelism there"
            )
        if self.trainer.is_fsdp_enabled:
            _check_fsdp(accelerator.state.fsdp_plugin)
        if self.trainer.is_deepspeed_enabled:
            stage = accelerator.state.deepspeed_plugin.zero_stage
            assert type(wrapped).__name__ == "DeepSpeedEngine", f"asked for DeepSpeed, got {type(wrapped).__name__}"
            assert wrapped.zero_optimization_stage() == stage, (wrapped.zero_optimization_stage(), stage)
            layout.append(f"ZeRO stage {stage}")
        if accelerator.is_main_process:
            print("layout: " + ", ".join(layout), flush=True)


def _check_fsdp(plugin) -> None:
    """UserError for variants of FSDP that cannot gather the weights for rollouts or do not save them as a model."""
    if plugin.fsdp_version != 2 or "FULL" not in str(plugin.state_dict_type):
        kind = str(plugin.state_dict_type).rsplit(".", 1)[-1]
        raise UserError(
            f"FSDP is set to fsdp_version {plugin.fsdp_version} and fsdp_state_dict_type {kind}: set 2 and "
            "FULL_STATE_DICT, as scripts/fsdp2.yaml has them"
        )
