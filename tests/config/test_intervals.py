"""Intervals of saves, evaluations and logs that a run would not read are refused."""

from types import SimpleNamespace

import pytest

from config import GRPOConfig, GRPOModelConfig, GRPOScriptArguments
from config.intervals import READ_WITH, check_intervals
from config.parser import RecipeParser

DEMO = ("--config", "config/recipes/grpo_ma_demo.yaml")  # save_strategy: "no"


@pytest.fixture
def parse(tmp_path, capsys):
    """The args of these flags, or the sentence that refuses them."""

    def call(*words):
        parser = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig))
        try:
            return parser.parse([*words, "--output_dir", str(tmp_path), "--report_to", "none"])[1]
        except SystemExit:
            return capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((*DEMO, "--save_steps", "2"), ("save_steps=2 would have no effect", "save_strategy is no (recipe)")),
        ((*DEMO, "--save_total_limit", "2"), ("save_total_limit=2", "save_strategy is no (recipe)")),
        (("--eval_steps", "50"), ("eval_steps=50", "eval_strategy is no (default); set eval_strategy to steps")),
        (("--save_steps", "9", "--save_strategy", "epoch"), ("save_steps=9", "save_strategy is epoch (flag)")),
        (("--logging_steps", "5", "--logging_strategy", "no"), ("logging_steps=5", "logging_strategy is no (flag)")),
    ],
)
def test_an_interval_that_is_not_read_is_refused(parse, flags, words):
    refused = parse(*flags)
    assert isinstance(refused, str) and all(word in refused for word in words), refused


def test_a_strategy_may_turn_off_the_saves_of_a_recipe(parse):
    args = parse("--config", "config/recipes/grpo_ma_qwen2_5_vl_3b.yaml", "--save_strategy", "no", "--use_cpu", "true")
    assert args.save_strategy == "no" and args.save_steps == 100


def test_a_recipe_may_turn_off_its_own_saves_and_needs_a_strategy_for_its_evaluations(parse, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text('save_strategy: "no"\nsave_steps: 100\n')
    assert parse("--config", str(recipe)).save_steps == 100
    recipe.write_text("eval_steps: 50\n")
    assert "eval_steps=50 would have no effect: eval_strategy is no (default)" in parse("--config", str(recipe))


@pytest.mark.parametrize("interval", READ_WITH)
def test_the_way_out_is_taken(parse, interval):
    strategy, values = READ_WITH[interval]
    args = parse(*DEMO, f"--{interval}", "2", f"--{strategy}", values[0])
    assert getattr(args, interval) == 2


def test_an_interval_that_a_recipe_leaves_empty_is_none():
    """`eval_steps: null` and `save_total_limit: null` state the defaults."""
    settings = SimpleNamespace(save_strategy="no", eval_strategy="no", save_total_limit=None, eval_steps=None)
    check_intervals(settings, {"save_total_limit": "recipe", "eval_steps": "recipe"})
