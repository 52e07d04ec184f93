"""Recipe files: what cannot be read as one, and values that look like flags."""

from pathlib import Path

import pytest

from config.grpo_config import GRPOConfig
from config.model_config import GRPOModelConfig
from config.parser import RecipeParser
from config.script_arguments import GRPOScriptArguments


@pytest.fixture
def parse(tmp_path, capsys):
    def call(content):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_bytes(content)
        argv = ["--config", str(recipe), "--output_dir", str(tmp_path), "--report_to", "none"]
        try:
            return RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig)).parse(argv)
        except SystemExit as end:
            return end.code, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"env: [a]\n", "env is ['a']: make it a mapping of variable names to values"),
        (b"env: hello\n", "env is 'hello': make it a mapping"),
        (b"env: {1: 2}\n", "env is {1: 2}: make it a mapping"),
        (b"\xff\xfe\x00", "cannot be read: it is not UTF-8"),
        (b"think_num: [2, 3]\n", "think_num takes one value, got a list: [2, 3]"),
    ],
)
def test_a_recipe_that_cannot_be_read_as_one(parse, content, sentence):
    status, message = parse(content)
    assert status == 2
    assert sentence in message and len(message.strip().splitlines()) == 1


def test_shipped_recipes_work_from_any_folder_and_own_ones_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = "config/recipes/grpo_ma_demo.yaml"

    def answer_num() -> int:
        parser = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig))
        return parser.parse(["--config", recipe, "--output_dir", "out", "--think_num", "2"])[1].answer_num

    assert answer_num() == 4
    Path(recipe).parent.mkdir(parents=True)
    Path(recipe).write_text("answer_num: 8\nreport_to: none\nuse_cpu: true\n")
    assert answer_num() == 8


def test_a_value_may_start_with_a_dash(parse):
    _, args, _ = parse(b"run_name: --mine\ntop_k: 0\n")
    assert args.run_name == "--mine"
