"""`--help` is one page that begins with the chosen method; `--dry-run` checks settings and nothing else."""

import pytest
from paths import ROOT

from config.grpo_config import GRPOConfig
from config.methods import SETTINGS
from config.model_config import GRPOModelConfig
from config.parser import RecipeParser
from config.script_arguments import GRPOScriptArguments
from config.short_help import GROUPS, LINES, short_help

RECIPE = str(ROOT / "config" / "recipes" / "tree_grpo_qwen2_5_3b.yaml")


@pytest.fixture
def parser(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    return RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig))


@pytest.mark.parametrize("method", SETTINGS)
def test_the_page_of_each_method_has_its_settings_first(parser, method):
    lines = short_help(parser, method).splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= 110
    named = [line.split()[0][2:] for line in lines if line.startswith("  --")]
    fields = SETTINGS[method].fields
    own = ["method", *(fields.__dataclass_fields__ if fields else ())]
    assert named[: len(own)] == own
    assert {"dataset_name", "model_name_or_path", "output_dir"} <= set(named) and len(set(named)) == len(named)


def test_a_switch_that_is_on_is_shown_with_its_default(parser):
    shown = [line.split()[:2] for line in short_help(parser, "grpo_ma").splitlines()]
    assert ["--use_peft", "True"] in shown and ["--freeze_vision", "True"] in shown
    assert ["--lora_vision", "False"] in shown


def test_the_page_names_only_settings_that_exist(parser):
    known = {action.dest for action in parser._actions} | {"empty_thought"}  # of the warm start
    assert {name for names in GROUPS.values() for name in names} <= known


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--config", RECIPE, "--help"], "method tree_grpo ("),
        (["--help", "--method", "gigpo"], "method gigpo ("),
        (["-h"], "method grpo_ma ("),
        (["--help", "all"], "--adam_beta1"),
    ],
)
def test_help_is_that_of_the_method_that_was_chosen(parser, capsys, argv, words):
    with pytest.raises(SystemExit) as stop:
        parser.parse(argv)
    said = capsys.readouterr().out
    assert stop.value.code == 0 and words in said
    assert ("adam_beta1" in said) == ("all" in argv)


OF_A_GPU_NODE = ["--bf16", "true", "--tf32", "true", "--deepspeed", "absent.json", "--report_to", "wandb"]


def test_a_dry_run_passes_where_the_machine_and_the_data_are_missing(parser, tmp_path):
    paths = [
        "--model_name_or_path",
        "absent/model",
        "--dataset_name",
        "absent.yaml",
        "--output_dir",
        str(tmp_path / "o"),
    ]
    _, args, _ = parser.parse(["--dry-run", *OF_A_GPU_NODE, *paths, "--think_num", "auto"])
    assert parser.dry_run and args.num_generations == 16
    assert not (tmp_path / "o").exists()
    parser.parse(["--output_dir", str(tmp_path / "o"), "--use_cpu", "true"])
    assert not parser.dry_run


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--think_nun", "4"], "unknown argument --think_nun: did you mean think_num?"),
        (["--beta", "much"], "invalid float value: 'much'"),
        (["--think_num", "1", "--answer_num", "1"], "group of one completion"),
        (["--method", "grpo", "--answer_num", "2"], "answer_num=2 is a setting of grpo_ma"),
        (["--per_device_train_batch_size", "15"], "set it to a multiple of 16"),
        (["--lora_r", "0"], "lora_r=0 must be at least 1"),
    ],
)
def test_a_dry_run_refuses_what_a_run_would_refuse(parser, capsys, flags, words):
    with pytest.raises(SystemExit) as stop:
        parser.parse(["--dry-run", *OF_A_GPU_NODE, *flags])
    assert stop.value.code == 2 and words in capsys.readouterr().err


def test_a_flag_is_noted_under_its_setting_whichever_of_its_names_was_used(parser):
    script, *_ = parser.parse(["--dataset", "a.yaml", "--use_cpu", "true", "--resume", "auto"])
    assert script.dataset_name == ["a.yaml"]
    assert parser.provenance.keys() >= {"dataset_name", "resume_from_checkpoint"}
