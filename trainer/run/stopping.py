"""Graceful stop on SIGTERM: a checkpoint once the current generation is used up, then the end of training."""

from __future__ import annotations

import signal

import torch
from transformers import TrainerCallback


class StopOnSignal(TrainerCallback):
    """Saves and stops after any process has received SIGTERM.

    A checkpoint contains no rollouts, so the remaining steps of the current generation are trained first. Further
    signals are ignored: a cluster and torch's launcher may each send one.

    Attributes:
        asked: whether this process received SIGTERM.
        stopped: whether training ended because of it.
    """

    def __init__(self, trainer):
        self.trainer, self.asked, self.stopped = trainer, False, False

    def on_train_begin(self, args, state, control, **kwargs):
        try:
            self.before = signal.signal(signal.SIGTERM, self._ask)
        except ValueError:  # not the main thread, where Python allows no handlers
            self.before = None

    def on_train_end(self, args, state, control, **kwargs):
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)

    def on_step_end(self, args, state, control, **kwargs):
        accelerator = self.trainer.accelerator
        asked = accelerator.gather(torch.tensor([int(self.asked)], device=accelerator.device)).any()
        if asked and state.global_step % args.window == 0:
            self.stopped = control.should_save = control.should_training_stop = True

    def _ask(self, number, frame):
        first, self.asked = not self.asked, True
        if first and self.trainer.accelerator.is_main_process:
            print("SIGTERM: a checkpoint will be saved after the last step of this generation", flush=True)
