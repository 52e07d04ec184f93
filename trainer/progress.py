"""What a training run says while it runs: its layout at the start, then one short line a log step."""

from __future__ import annotations

import warnings

from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback

SHOWN = {
    "reward": "reward",
    "rewards/accuracy_reward/mean": "accuracy",
    "rewards/format_reward/mean": "format",
    "variance/rho": "rho",
    "thought/unclosed_share": "unclosed",
    "grad_norm": "grad",
    "tokens/generated": "tokens",
    "step_time": "s/step",
}


class ShortProgress(ProgressCallback):
    """The progress bar with the few figures one watches; all others go to the log backends and trainer_state.json."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        figures = [f"{label} {_short(logs[key])}" for key, label in SHOWN.items() if key in logs]
        evaluation = [f"{key} {_short(value)}" for key, value in logs.items() if key.startswith("eval_")]
        if figures or evaluation:
            self.training_bar.write(f"step {state.global_step}: " + ", ".join(figures or evaluation))


def warn_of_unclosed(share: float, args) -> None:
    """A warning with the ways out when most thoughts of a generation never closed; `args` is the GRPOConfig."""
    if share > 0.5:
        warnings.warn(
            f"{share:.0%} of the thoughts never closed: raise max_thought_length ({args.max_thought_length}), or "
            f"warm-start the model to write {args.thought_end} (scripts/train/sft.py)",
            stacklevel=3,
        )


def _short(value) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


class LayoutCheck(TrainerCallback):
    """States how many processes train and under what, and fails if that is not what the launcher asked for.

    A wrong launch is otherwise silent: one process instead of two, or no DeepSpeed at all.
    """

    def __init__(self, trainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        accelerator, wrapped = self.trainer.accelerator, self.trainer.model_wrapped
        layout = [f"{accelerator.num_processes} process(es) on {accelerator.device.type}", type(wrapped).__name__]
        assert accelerator.num_processes == args.world_size
        if self.trainer.is_deepspeed_enabled:
            stage = accelerator.state.deepspeed_plugin.zero_stage
            assert type(wrapped).__name__ == "DeepSpeedEngine", f"asked for DeepSpeed, got {type(wrapped).__name__}"
            assert wrapped.zero_optimization_stage() == stage, (wrapped.zero_optimization_stage(), stage)
            layout.append(f"ZeRO stage {stage}")
        if accelerator.is_main_process:
            print("layout: " + ", ".join(layout), flush=True)
