"""float16: an overflow is the loss scaler's business, which skips the step and lowers its scale."""

import pytest
import torch
from trainer_cases import logged, text_trainer, weights

from trainer.run.faults import StepError


def scaled_trainer(tiny_text, folder, **changes):
    """A run whose accelerator has a loss scaler, as with fp16 on a GPU; the scale overflows float32 at first."""
    trainer = text_trainer(tiny_text, folder, perturb=0.01, beta=0.1, max_steps=3, **changes)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-100)
    return trainer


@pytest.mark.parametrize("norm", [0.0, 1.0])
def test_the_first_overflow_is_skipped_and_the_run_goes_on(tiny_text, tmp_path, norm):
    trainer = scaled_trainer(tiny_text, tmp_path, max_grad_norm=norm)
    before = weights(trainer)
    trainer.train()
    assert trainer.accelerator.scaler.get_scale() == 2.0**27
    assert logged(trainer, "faults/fp16_overflow") == [1.0]
    assert any((before[name] != weight).any() for name, weight in weights(trainer).items())
    assert logged(trainer, "faults/non_finite") == [0.0] * 3


def test_a_gradient_that_no_scale_makes_finite_stops_the_run(tiny_text, tmp_path):
    trainer = scaled_trainer(tiny_text, tmp_path)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=0.5)
    weight = next(p for p in trainer.model.parameters() if p.requires_grad)
    weight.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(StepError, match="a gradient is not finite"):
        trainer.train()
