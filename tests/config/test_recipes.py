"""Every recipe is read as a whole and trains two steps on the tiny model; an adapter that came out trains on."""

import json
import re
import sys

import pytest
import torch
import yaml
from paths import ROOT

from config.grpo_config import GRPOConfig
from config.model_config import GRPOModelConfig
from config.parser import RecipeParser
from config.script_arguments import GRPOScriptArguments

RECIPES = sorted((ROOT / "config" / "recipes").glob("*.yaml"))
RELEASES = [path for path in RECIPES if path.stem.endswith("_vl_3b")]
DEMO = "metadata/demo/trajectory_train.yaml"

# What stands in for each recipe's own size and data: the tiny model, short completions, one tree a step.
SMALL = {
    "model_name_or_path": "scripts/demo/tiny_model",
    "dataset_name": DEMO,
    "max_steps": 2,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "logging_steps": 1,
    "warmup_steps": 0,
    "learning_rate": 1e-3,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
}


def parse(path, *flags):
    parser = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig))
    return parser.parse(["--config", str(path), *flags]), parser


def lengths(method: str) -> dict:
    if method in ("grpo", "rloo", "reinforce_plus_plus", "tree_adv", "parent_difference"):
        return {"max_completion_length": 24}
    if method == "tree_grpo":  # two trees of three leaves; turns too short to call anything
        turns = {"max_turn_length": 8, "max_observation_length": 64, "max_completion_length": 256}
        data = {"dataset_name": "metadata/demo/search_train.yaml"}
        data["environment_args"] = '{"retriever": "metadata/demo/search/corpus.jsonl"}'
        return turns | data | {"per_device_train_batch_size": 6, "tree_num": 2}
    if method == "gigpo":
        return turns_of_tree_grpo() | {"num_generations": 4, "per_device_train_batch_size": 8}
    if method == "turn_value":
        return turns_of_tree_grpo()
    return {"max_thought_length": 16, "max_answer_length": 8}


def turns_of_tree_grpo() -> dict:
    return {name: value for name, value in lengths("tree_grpo").items() if name != "tree_num"}


@pytest.fixture
def train(monkeypatch):
    """train.py as from the command line: `train(recipe, folder, **changes)`."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.chdir(ROOT)
    import train as module

    def call(path, folder, **changes):
        settings = SMALL | lengths(yaml.safe_load(path.read_text())["method"]) | {"output_dir": folder} | changes
        flags = [f"--{name}={value}" for name, value in settings.items()]
        monkeypatch.setattr(sys, "argv", ["train.py", "--config", str(path), *flags])
        module.main()

    return call


def test_the_recipes_that_the_readme_names_exist():
    names = {path.stem for path in RECIPES}
    assert {f"{method}_{size}" for method in ("grpo_ma", "grpo") for size in ("demo", "qwen2_5_vl_3b")} <= names


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
class TestEveryRecipe:
    def test_it_is_read_in_full(self, path):
        recipe = yaml.safe_load(path.read_text())
        (script, args, model), parser = parse(path)
        owners = (script, args, model)
        for name, value in recipe.items():
            owner = next(owner for owner in owners if hasattr(owner, name))
            got = getattr(owner, name)
            if name == "dataset_name":
                value = [value]
            if name == "report_to":
                value = [] if value == "none" else [value]
            assert got == (json.dumps(value) if isinstance(value, dict) else value), name
            assert parser.provenance[name] == "recipe"

    def test_it_starts_with_what_it_is_for_and_writes_below_runs(self, path):
        assert path.read_text().startswith("# ")
        recipe = yaml.safe_load(path.read_text())
        assert recipe["output_dir"] == f"runs/{path.stem}"
        kinds = "qwen2_5_(vl_)?3b(_full|_throughput)?|demo|metaworld|gridworld|easy_vqa|smollm2"
        assert recipe["method"] == re.sub(f"_({kinds})$", "", path.stem)

    def test_what_it_needs_is_shipped_made_by_a_script_or_named_by_the_user(self, path):
        recipe = yaml.safe_load(path.read_text())
        for name in ("dataset_name", "model_name_or_path"):
            place = recipe.get(name)
            if place is not None and not place.startswith(("runs/", "Qwen/")):
                assert (ROOT / place).exists(), place

    def test_it_trains_two_steps_on_the_tiny_model_and_saves(self, path, train, tmp_path, capsys):
        train(path, tmp_path)
        state = json.loads((tmp_path / "trainer_state.json").read_text())
        steps = [entry for entry in state["log_history"] if "loss" in entry]
        assert [entry["step"] for entry in steps] == [1, 2]
        assert all(entry["rewards/accuracy_reward/mean"] is not None for entry in steps)
        adapter = yaml.safe_load(path.read_text()).get("use_peft", True)
        weights = "adapter_model.safetensors" if adapter else "model.safetensors"
        assert {weights, "processor_config.json", "chat_template.jinja"} <= {file.name for file in tmp_path.iterdir()}
        assert "prefix sharing: packed and dense log-probs differ" in capsys.readouterr().out
        trees, method = tmp_path / "trees.jsonl", yaml.safe_load(path.read_text())["method"]
        forked = {json.loads(line).get("forked_by") for line in trees.open()} if trees.exists() else set()
        assert forked <= {{"tree_adv": "entropy", "parent_difference": "fixed"}.get(method)}


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem)
def test_the_3b_recipes_are_the_releases_setting(path):
    (_, args, model), _ = parse(path)
    assert args.leaves == 16  # both methods score as many completions a prompt
    assert (args.learning_rate, args.beta, args.loss_type) == (1e-5, 0.0, "grpo")
    assert (model.lora_r, model.lora_alpha, model.lora_dropout) == (64, 128, 0.05)
    assert model.freeze_vision is True
    assert args.bf16 is True
    assert model.resolve_dtype(args.bf16) == "bfloat16"
    assert args.max_completion_length == 512
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (16, 1)
    if args.method == "grpo_ma":
        assert (args.think_num, args.answer_num, args.sync_prompt_across_ranks) == (4, 4, True)


def test_one_optimiser_step_of_the_published_setting_is_one_prompt():
    """All processes grow trees of the same prompt: 4 GPUs give 64 leaves of it."""
    (_, args, _), _ = parse(ROOT / "config" / "recipes" / "grpo_ma_qwen2_5_vl_3b.yaml")
    trees = args.per_device_train_batch_size * args.gradient_accumulation_steps // args.leaves
    assert (trees, args.sync_prompt_across_ranks, 4 * args.leaves) == (1, True, 64)


def test_the_recipe_for_throughput_differs_in_prompts_per_step_and_in_checkpointing():
    names = ("grpo_ma_qwen2_5_vl_3b", "grpo_ma_qwen2_5_vl_3b_throughput")
    published, fast = (yaml.safe_load((ROOT / "config" / "recipes" / f"{name}.yaml").read_text()) for name in names)
    changed = {name for name in fast if fast[name] != published.get(name)}
    batch = {"gradient_accumulation_steps", "sync_prompt_across_ranks"}
    assert changed == {"output_dir", "gradient_checkpointing", *batch}
    assert published.keys() <= fast.keys()


def test_the_demo_recipes_score_as_many_completions():
    (_, tree, _), _ = parse(ROOT / "config" / "recipes" / "grpo_ma_demo.yaml")
    (_, chains, _), _ = parse(ROOT / "config" / "recipes" / "grpo_demo.yaml")
    assert tree.leaves == chains.leaves == 16
    same = ("learning_rate", "max_steps", "per_device_train_batch_size", "loss_type", "beta", "temperature")
    assert {name: getattr(tree, name) for name in same} == {name: getattr(chains, name) for name in same}


def test_a_run_goes_on_from_the_adapter_of_another(train, tmp_path):
    """The adapter named as a start is trained, not only loaded."""
    from safetensors.torch import load_file

    path = ROOT / "config" / "recipes" / "grpo_ma_demo.yaml"
    full = {"max_thought_length": 72, "max_answer_length": 64}  # long enough for rewards that differ
    train(path, tmp_path / "first", **full)
    train(path, tmp_path / "second", adapter_path=tmp_path / "first", beta=0.05, **full)
    first, second = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(not torch.equal(first[name], second[name]) for name in first)
    state = json.loads((tmp_path / "second" / "trainer_state.json").read_text())
    assert state["log_history"][0]["thought/kl"] < 1e-6
