"""Settings of another method: a flag or a Python value is refused, a recipe's is dropped with one line."""

import pytest
from paths import ROOT

from config.foreign import OWNERS
from config.grpo_config import GRPOConfig
from config.methods import SETTINGS
from config.model_config import GRPOModelConfig
from config.parser import RecipeParser
from config.script_arguments import GRPOScriptArguments
from task.errors import UserError

RECIPES = sorted((ROOT / "config" / "recipes").glob("*.yaml"))


def changed(name: str):
    """Another value of a field than its default, one that the field's own method would take."""
    field = GRPOConfig.__dataclass_fields__[name]
    if "choices" in field.metadata:
        return next(choice for choice in field.metadata["choices"] if choice != field.default)
    special = {"environment_args": "{}", "fork_entropy": 1.0, "branch_temperature": 0.7, "fork_share": 0.3}
    special["gamma"] = 0.5
    if name in special:
        return special[name]
    return not field.default if isinstance(field.default, bool) else (field.default or 0) + 1


@pytest.fixture
def parse(tmp_path, capsys):
    """(args, what was printed) of a recipe and flags, or (status, message)."""

    def call(recipe, *flags):
        parser = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig))
        try:
            parsed = parser.parse(["--config", str(recipe), "--output_dir", str(tmp_path / "out"), *flags])
        except SystemExit as end:
            return end.code, capsys.readouterr().err
        return parsed[1], capsys.readouterr().out

    return call


@pytest.mark.parametrize("method", SETTINGS)
def test_every_field_of_another_method_is_refused_and_names_its_method(tmp_path, method):
    for name, owners in OWNERS.items():
        given = {"output_dir": str(tmp_path), "method": method, name: changed(name)}
        if method in owners:
            GRPOConfig(**given)
        else:
            of = " and ".join(owners)
            with pytest.raises(UserError, match=f"^{name}=.* is a setting of {of}, and {method} does not read it: "):
                GRPOConfig(**given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"method": "tree_adv", "tree_num": 1}, "setting of tree_grpo, and tree_adv .*: did you mean num_trees?"),
        ({"method": "tree_grpo", "num_trees": 1}, "setting of tree_adv, and tree_grpo .*: did you mean tree_num?"),
        ({"method": "grpo", "think_num": 9}, "^think_num=9 is a setting of grpo_ma, and grpo .*: leave it out$"),
        ({"method": "grpo_ma", "aggregation": "sum"}, "^aggregation='sum' is a setting of tree_adv, and grpo_ma"),
    ],
)
def test_the_near_name_that_was_meant(tmp_path, given, sentence):
    with pytest.raises(UserError, match=sentence):
        GRPOConfig(output_dir=str(tmp_path), **given)


def test_a_value_equal_to_its_default_is_taken(tmp_path):
    assert GRPOConfig(output_dir=str(tmp_path), method="grpo", think_num=4).method == "grpo"


class TestRecipes:
    LINE = "dropped for method tree_adv: think_num (grpo_ma), max_thought_length (grpo_ma)"

    @pytest.fixture
    def recipe(self, tmp_path):
        path = tmp_path / "recipe.yaml"
        path.write_text("method: grpo_ma\nthink_num: 2\nmax_thought_length: 8\nseed: 3\n")
        return path

    def test_what_it_says_for_its_own_method_is_dropped_with_one_line(self, parse, recipe):
        args, printed = parse(recipe, "--method", "tree_adv")
        assert (args.think_num, args.max_thought_length, args.seed, args.num_generations) == (4, 384, 3, 16)
        assert printed == f"recipe {recipe}: {self.LINE}\n"

    def test_one_process_says_so(self, parse, recipe, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        assert parse(recipe, "--method", "grpo")[1] == ""

    def test_a_flag_for_another_method_is_refused(self, parse, recipe):
        status, message = parse(recipe, "--method", "tree_adv", "--think_num", "3")
        assert status == 2
        assert "think_num=3 is a setting of grpo_ma, and tree_adv does not read it: leave it out" in message

    def test_nothing_is_dropped_or_said_of_its_own_method(self, parse, recipe):
        args, printed = parse(recipe)
        assert (args.think_num, printed) == (2, "")

    def test_sizes_that_the_other_method_derives_are_dropped_too(self, parse):
        args, printed = parse(ROOT / "config" / "recipes" / "grpo_demo.yaml", "--method", "grpo_ma")
        assert (args.num_generations, args.max_completion_length) == (16, 512)
        assert "dropped for method grpo_ma: " in printed and "max_completion_length (grpo)" in printed

    def test_sizes_against_its_own_method_are_refused(self, parse, tmp_path):
        (tmp_path / "own.yaml").write_text("method: grpo_ma\nnum_generations: 8\n")
        status, message = parse(tmp_path / "own.yaml")
        assert status == 2 and "num_generations=8, but grpo_ma derives 16" in message

    @pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
    @pytest.mark.parametrize("method", SETTINGS)
    def test_every_recipe_is_read_for_every_method(self, parse, path, method):
        """Rows per micro-batch are the user's: tree_grpo has 6 leaves, turn_value 22, the others 16."""
        args, printed = parse(path, "--method", method, "--per_device_train_batch_size", "528")
        assert args.method == method, printed
        assert len(printed.splitlines()) <= 1
