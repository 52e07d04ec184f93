"""The probe for K and M: its prompts are those of the run."""

import json

import pytest
from paths import ROOT

from config.grpo_config import GRPOConfig
from config.model_config import GRPOModelConfig
from config.parser import RecipeParser
from config.script_arguments import GRPOScriptArguments
from trainer.budget import sampled_probe


class Loaded(Exception):
    """Ends the probe where it would load the model."""


def load_arguments(tmp_path, monkeypatch, *flags) -> tuple[dict, dict]:
    """What the probe of a demo run with these flags gives `load_policy`, and its tasks."""
    seen, load_tasks = {}, sampled_probe.load_tasks
    recipe = ["--config", str(ROOT / "config/recipes/grpo_ma_demo.yaml"), "--output_dir", str(tmp_path)]
    parsed = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig)).parse([*recipe, *flags])

    def tasks(**given):
        seen["tasks"] = load_tasks(**given)
        return seen["tasks"]

    def policy(name, **given):
        seen["policy"] = given
        raise Loaded

    monkeypatch.setattr(sampled_probe, "load_tasks", tasks)
    monkeypatch.setattr(sampled_probe, "load_policy", policy)
    with pytest.raises(Loaded):
        sampled_probe.probe_policy(*parsed, locate=lambda path: str(ROOT / path))
    return seen["policy"], seen["tasks"]


def test_it_asks_in_the_frame_and_by_the_template_of_the_run(tmp_path, monkeypatch):
    switches = '{"enable_thinking": true}'
    flags = ("--coordinate_frame", "norm1000", "--chat_template_kwargs", switches)
    policy, tasks = load_arguments(tmp_path, monkeypatch, *flags)
    assert tasks["trajectory-sharerobot"].coordinate_frame == "norm1000"
    assert policy["coordinate_frame"] == "norm1000"
    assert policy["chat_template_kwargs"] == json.loads(switches)


def test_it_samples_from_the_quantised_model_of_a_qlora_run(tmp_path, monkeypatch):
    policy, _ = load_arguments(tmp_path, monkeypatch, "--load_in_4bit", "true")
    assert policy["quantization_config"].load_in_4bit
    policy, _ = load_arguments(tmp_path, monkeypatch)
    assert policy["quantization_config"] is None
