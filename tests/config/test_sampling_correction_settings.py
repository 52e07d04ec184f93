"""TRL's `vllm_importance_sampling_*`: per token, with bounds that make sense; the rest is refused in one sentence."""

import pytest

from config.grpo_config import GRPOConfig
from config.sampling_correction import check_sampling_correction
from task.errors import UserError
from trainer.logprobs.sampling_correction import SamplingCorrection

NAME = "vllm_importance_sampling_"
REFUSED = {
    "mask of sequences": ({"mode": "sequence_mask"}, "drop a whole branch of a tree: use token_truncate or token_mask"),
    "ratio of sequences": ({"mode": "sequence_truncate"}, "use token_truncate or token_mask"),
    "unknown": ({"mode": "tokens"}, "'tokens' is unknown: use token_truncate or token_mask"),
    "low": ({"clip_min": -0.1}, "clip_min=-0.1 must be a finite number of at least 0"),
    "no number": ({"clip_max": float("nan")}, "clip_max=nan must be a finite number above 0"),
    "zero": ({"clip_max": 0.0}, "clip_max=0.0 must be a finite number above 0"),
    "older name": ({"cap": -1.0}, "cap=-1.0 must be a finite number above 0"),
    "crossed": ({"clip_min": 3.0, "clip_max": 2.0}, "clip_min=3.0 must be below vllm_importance_sampling_clip_max=2.0"),
    "unbounded": ({"clip_max": None}, "has no bound: set vllm_importance_sampling_clip_max, or use token_mask"),
}


@pytest.fixture
def made(tmp_path):
    """A config with the given settings of the correction, as it is before it is checked."""
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True)
    config.use_vllm = True

    def call(**settings):
        for name, value in settings.items():
            setattr(config, NAME + name, value)
        return config

    return call


@pytest.mark.parametrize("case", REFUSED)
def test_a_correction_that_trees_do_not_support_is_refused(made, case):
    settings, sentence = REFUSED[case]
    with pytest.raises(UserError) as error:
        check_sampling_correction(made(**settings))
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_defaults_are_trls_with_weights_per_token(made):
    config = made()
    check_sampling_correction(config)
    assert SamplingCorrection.of(config) == SamplingCorrection("token_truncate", None, 3.0)
    assert SamplingCorrection.of(made(mode="token_mask", clip_min=0.1)) == SamplingCorrection("token_mask", 0.1, 3.0)
    assert SamplingCorrection.of(made(correction=False)) is None
    config.use_vllm = False
    assert SamplingCorrection.of(made(correction=True)) is None, "the trainer's own model samples"
