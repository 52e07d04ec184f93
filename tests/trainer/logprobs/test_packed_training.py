"""Three LoRA steps end at the same weights, packed or one row per leaf, whatever TRL's loss."""

import copy

import pytest
from trainer_cases import random_tree, script, trainable, vlm_trainer, weights

from trainer.logprobs.forward import RowForward

LOSSES = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
}


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("loss", LOSSES)
def test_three_adam_steps(tiny_vlm, tmp_path, monkeypatch, loss, beta):
    """The second step goes over the first one's rollout again, so that ratios are not 1 and the old pass counts.

    Adam's eps is 1e-3: with 1e-8 it turns rounding in gradients near zero into steps of full size.
    """
    script(monkeypatch, random_tree)
    ends = {}
    for sharing in ("on", "off"):
        random_tree.calls = 0
        given = {"max_steps": 3, "num_iterations": 2, "beta": beta, "optim": "adamw_torch", "adam_epsilon": 1e-3}
        given |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "prefix_sharing": sharing}
        trainer = vlm_trainer(tiny_vlm, tmp_path / sharing, rows=4, **given, **LOSSES[loss])
        start = weights(trainer)
        trainer.train()
        assert random_tree.calls == 4, "two generations of two trees"
        ends[sharing] = weights(trainer)
        assert max((ends[sharing][name] - start[name]).abs().max() for name in trainable(trainer)) > 1e-3
    gap = max((ends["on"][name] - ends["off"][name]).abs().max().item() for name in ends["on"])
    assert gap < 1e-5


def test_auto_says_why_it_does_not_share(tiny_text):
    """A model that cannot be packed trains one row per leaf, at many times the cost: the warning says so."""
    module, model, _ = tiny_text
    model = copy.deepcopy(model)
    model.config.layer_types = ["sliding_attention"] * model.config.num_hidden_layers
    with pytest.warns(UserWarning, match=r"prefixes are not shared.* sliding_attention layers"):
        assert not RowForward(module, model, "auto", None).sharing
    with pytest.raises(ValueError, match="sliding_attention"):
        RowForward(module, model, "on", None)
