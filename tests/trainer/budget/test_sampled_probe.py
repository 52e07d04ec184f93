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


def test_it_asks_in_the_frame_and_by_the_template_of_the_run(tmp_path, monkeypatch):
    seen, load_tasks = {}, sampled_probe.load_tasks
    switches = '{"enable_thinking": true}'
    recipe = ["--config", str(ROOT / "config/recipes/grpo_ma_demo.yaml"), "--output_dir", str(tmp_path)]
    flags = [*recipe, "--coordinate_frame", "norm1000", "--chat_template_kwargs", switches]
    parsed = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig)).parse(flags)

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
    assert seen["tasks"]["trajectory-sharerobot"].coordinate_frame == "norm1000"
    assert seen["policy"]["coordinate_frame"] == "norm1000"
    assert seen["policy"]["chat_template_kwargs"] == json.loads(switches)
