"""`think_num auto`, `answer_num auto`: what is probed, refused and kept, and the check while training."""

import json

import pytest
from paths import ROOT

from config.grpo_config import GRPOConfig
from config.model_config import GRPOModelConfig
from config.parser import RecipeParser
from config.script_arguments import GRPOScriptArguments
from task.errors import UserError
from trainer.budget import choice
from trainer.budget.probe import Probe
from trainer.budget.recheck import NAMES, Recheck, advice_while_training

TYPES = (GRPOScriptArguments, GRPOConfig, GRPOModelConfig)
DEMO = str(ROOT / "config/recipes/grpo_ma_demo.yaml")
FAR, NEAR = Probe(0.02, 0.4, 60, 5), Probe(0.02, 0.001, 10, 40)  # answers noisy and cheap, exact and dear


@pytest.fixture
def parse(tmp_path, monkeypatch):
    def call(*flags, probe=FAR):
        monkeypatch.setattr(choice, "probe_policy", lambda *given: probe)
        parser = RecipeParser(TYPES, choice.choose_sizes)
        script, args, _ = parser.parse(["--config", DEMO, "--output_dir", str(tmp_path), *flags])
        choice.check_budget(script, args, parser.provenance)
        return args, parser.provenance

    return call


def test_both_numbers_are_chosen_for_the_policy(parse, capsys):
    auto = ("--think_num", "auto", "--answer_num=auto")
    noisy, provenance = parse(*auto)
    assert provenance["think_num"] == provenance["answer_num"] == "probe"
    assert 64 % noisy.num_generations == 0 and noisy.num_generations == noisy.think_num * noisy.answer_num
    assert "think_num=auto and answer_num=auto" in capsys.readouterr().out
    exact, _ = parse(*auto, probe=NEAR)
    assert exact.answer_num < noisy.answer_num


def test_a_larger_budget_allows_more_and_one_number_may_stay(parse):
    one, _ = parse("--think_num", "auto", "--rollout_budget", "400")
    more, _ = parse("--think_num", "auto", "--rollout_budget", "1400")
    assert one.answer_num == more.answer_num == 4 and one.think_num < more.think_num


def test_a_resumed_run_keeps_its_numbers(parse, tmp_path):
    first, _ = parse("--answer_num", "auto")
    kept = json.loads((tmp_path / choice.CHOICE).read_text())
    again, _ = parse("--answer_num", "auto", "--resume", "auto", probe=NEAR)
    assert again.answer_num == first.answer_num == kept["answer_num"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--think_num", "auto", "--rollout_budget", "60"), "fit a rollout_budget of 60 tokens"),
        (("--think_num", "auto", "--method", "grpo"), "grpo has no thoughts and answers"),
        (("--think_num", "auto", "--extra_reward", "mine:brevity"), "probes with the tasks' own rewards"),
        (("--think_num", "some"), "'some' is neither a whole number nor auto"),
    ],
)
def test_what_cannot_be_chosen_is_refused(parse, capsys, flags, sentence):
    with pytest.raises(SystemExit):
        parse(*flags)
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--rollout_budget", "500"), "both are numbers: leave it out"),
        (("--budget_check", "-1"), "budget_check=-1 must be at least 0"),
        (("--budget_check", "5", "--answer_num", "1"), "with answer_num=1 does not measure"),
    ],
)
def test_settings_without_effect_are_refused(parse, flags, sentence):
    with pytest.raises(UserError, match=sentence):
        parse(*flags)


def test_scripts_that_probe_nothing_refuse_auto(capsys):
    with pytest.raises(SystemExit):
        RecipeParser(TYPES).parse(["--config", DEMO, "--think_num", "auto"])
    assert "think_num=auto: train.py alone probes for it" in capsys.readouterr().err


def test_the_check_while_training_speaks_of_its_generations(capsys, tmp_path):
    args = GRPOConfig(output_dir=str(tmp_path), report_to="none", use_cpu=True)
    check = Recheck(args, every=2)

    class State:
        global_step, is_world_process_zero = 1, True

    check.on_log(args, State, None, logs=dict(zip(NAMES, (0.02, 0.001, 10, 40), strict=True)))
    assert capsys.readouterr().out == ""
    State.global_step = 2
    check.on_log(args, State, None, logs={"loss": 1.0})
    assert "budget check, for a further run: think_num" in capsys.readouterr().out and check.seen == []
    assert "within 10%" in advice_while_training(Probe(0.02, 0.1, 60, 20), args, 0.1)
    assert "do not differ" in advice_while_training(Probe(0.0, 0.1, 60, 20), args, 0.1)
