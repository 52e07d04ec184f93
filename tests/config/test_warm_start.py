"""The warm start has train.py's flags, older names still work, and a small model gets settings with which it learns."""

import pytest
from paths import ROOT

from config.parser import RecipeParser
from config.warm_start import (
    SMALL,
    SMALL_RATE,
    WarmStartArguments,
    WarmStartModelConfig,
    WarmStartTraining,
    fit_to_size,
    is_small,
)

TINY = "scripts/demo/tiny_model"


@pytest.fixture
def parse(tmp_path):
    def call(*flags):
        parser = RecipeParser((WarmStartArguments, WarmStartModelConfig, WarmStartTraining))
        return parser, *parser.parse(["--output_dir", str(tmp_path), "--use_cpu", "true", *flags])

    return call


def test_the_tiny_model_is_small_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large").mkdir()
    with open(tmp_path / "large" / "model.safetensors", "wb") as file:
        file.truncate(SMALL)
    assert is_small(TINY) and is_small(str(ROOT / TINY))
    assert not any(map(is_small, ["large", "org/name", str(tmp_path), None]))


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        ([], (False, 64, 128)),
        (["--use_peft", "true"], (True, 64, 128)),
        (["--lora_rank", "8"], (True, 8, 16)),
        (["--lora_rank", "0", "--freeze_vision", "false"], (False, 64, 128)),
        (["--use_peft", "true", "--lora_r", "4", "--lora_alpha", "4"], (True, 4, 4)),
        (["--adapter_path", "runs/earlier"], (True, 64, 128)),
        (["--model_name_or_path", "org/large"], (True, 64, 128)),
    ],
)
def test_what_is_trained_follows_the_flags_then_the_size(parse, flags, values):
    _, _, model, _ = parse("--model_name_or_path", TINY, *flags)
    assert (model.use_peft, model.lora_r, model.lora_alpha) == values


@pytest.mark.parametrize(
    ("flags", "rate", "epochs"),
    [
        ([], SMALL_RATE, 25),
        (["--per_device_train_batch_size", "1"], SMALL_RATE, 4),
        (["--learning_rate", "1e-5"], 1e-5, 25),
        (["--num_train_epochs", "1"], SMALL_RATE, 1),
        (["--max_steps", "7"], SMALL_RATE, 3),
        (["--model_name_or_path", "org/large"], 1e-4, 3),
    ],
)
def test_a_small_model_gets_a_rate_and_steps_unless_they_are_given(parse, flags, rate, epochs):
    parser, _, model, training = parse("--model_name_or_path", TINY, *flags)
    fit_to_size(model, training, records=32, given=parser.provenance)
    assert (training.learning_rate, training.num_train_epochs) == (rate, epochs)


def test_flags_have_the_names_of_training_and_older_ones_are_taken(parse):
    _, args, _, training = parse("--dataset", "a.yaml", "b.yaml", "--resume", "auto")
    assert args.dataset_name == ["a.yaml", "b.yaml"] and training.resume_from_checkpoint == "auto"
    assert parse("--dataset_name", "a.yaml")[1].dataset_name == ["a.yaml"]


def test_quantised_weights_are_refused(parse, capsys):
    with pytest.raises(SystemExit):
        parse("--model_name_or_path", "org/large", "--load_in_4bit", "true")
    assert "the warm start trains on unquantised weights" in capsys.readouterr().err
