"""Settings of TRL, transformers and accelerate that are refused, and the way out that each sentence names."""

import re

import pytest

from config import GRPOConfig, GRPOModelConfig, GRPOScriptArguments
from config.parser import RecipeParser
from config.unsupported import ACCELERATOR, IDLE, OF_LOSSES, SUPPORTED
from task.errors import UserError


@pytest.fixture
def make(tmp_path):
    return lambda **changes: GRPOConfig(output_dir=str(tmp_path), report_to="none", **changes)


@pytest.fixture
def flags(tmp_path, capsys):
    """The args of these flags, or the sentence that refuses them."""

    def call(*words):
        parser = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig))
        try:
            return parser.parse(["--output_dir", str(tmp_path), *words])[1]
        except SystemExit:
            return capsys.readouterr().err

    return call


@pytest.mark.parametrize("name", [*SUPPORTED, *IDLE])
def test_any_other_value_than_those_that_work_is_refused(make, name):
    default = GRPOConfig.__dataclass_fields__[name].default
    other = not default if isinstance(default, bool) else "other"
    with pytest.raises(
        UserError, match=rf"^{name}={other!r} (is not supported with rollout trees|would have no effect)"
    ):
        make(**{name: other})


@pytest.mark.parametrize(
    ("given", "meant"), [("True", "group"), ("true", "group"), ("False", "none"), ("batch", "batch"), ("none", "none")]
)
def test_a_flag_names_scales_as_trl_does(flags, given, meant):
    assert flags("--scale_rewards", given).scale_rewards == meant


def test_every_way_out_of_a_sentence_is_taken_as_a_flag(flags, make):
    for name, supported in SUPPORTED.items():
        with pytest.raises(UserError) as refusal:
            make(**{name: "other"})
        for value in re.findall(r"'[^']*'|[\w.]+", str(refusal.value).partition(": use ")[2].replace(" or ", " ")):
            args = flags(f"--{name}", value.strip("'"))
            assert getattr(args, name) in supported, (name, value, args)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "tree_grpo", "max_tool_calling_iterations": 2}, "limited by max_turns"),
        ({"log_multimodal": False}, "^log_multimodal=False would have no effect: .*; leave log_multimodal out$"),
        ({"sapo_temperature_pos": 2.0}, "loss_type grpo does not read it, but sapo does; leave it out"),
        ({"delta": 3.0, "loss_type": "cispo"}, "loss_type cispo does not read it, but grpo, bnpo, dr_grpo, dapo do"),
        ({"warmup_ratio": 0.1}, "^warmup_ratio=0.1 .*set warmup_steps.*answer_warmup_steps is for"),
        ({"warmup_steps": 3, "lr_scheduler_type": "constant"}, "has no warm-up; set it to constant_with_warmup"),
        ({"max_slots": 9999, "prefix_sharing": "off"}, "prefix_sharing is off: leave max_slots out"),
        ({"method": "grpo", "shared_token_weight": "once"}, "the chains of grpo do not: leave it out"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused_with_the_way_out(make, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        make(**changes)


@pytest.mark.parametrize("name", OF_LOSSES)
def test_a_setting_of_one_loss_is_taken_with_it(make, name):
    for loss in OF_LOSSES[name]:
        assert getattr(make(**{name: 1.5, "loss_type": loss}), name) == 1.5


@pytest.mark.parametrize("name", ACCELERATOR)
@pytest.mark.parametrize("form", ["dict", "flag"])
def test_of_accelerator_config(make, flags, name, form):
    value, text = ({"num_steps": 2}, '{"num_steps": 2}') if name == "gradient_accumulation_kwargs" else (True, "true")
    if form == "dict":
        with pytest.raises(UserError, match=f"^accelerator_config: {name}=.* is not supported .*: leave it out$"):
            make(accelerator_config={name: value})
    else:
        assert f"accelerator_config: {name}=" in flags("--accelerator_config", f'{{"{name}": {text}}}')


def test_warmup_ratio_zero_is_taken(flags):
    assert flags("--warmup_ratio", "0").warmup_ratio == 0


def test_the_arguments_are_names_of_the_package():
    import config

    assert {GRPOConfig.__module__, GRPOModelConfig.__module__, GRPOScriptArguments.__module__} == {
        "config.grpo_config", "config.model_config", "config.script_arguments",
    }  # fmt: skip
    with pytest.raises(AttributeError, match="there is no 'Config' here; there are GRPOConfig"):
        config.Config  # noqa: B018
