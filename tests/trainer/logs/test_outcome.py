"""What a run says at its end, and what its step line shows, when rewards failed or nothing could be learnt."""

import re

import pytest
from reward_cases import make_task
from trainer_cases import length_reward, text_trainer
from transformers import TrainerControl, TrainerState

from task.rewards.router import task_rewards
from trainer.logs.outcome import Outcome, failure_sums
from trainer.logs.progress import WIDTH, ShortProgress, step_lines


def failing_rewards(**functions):
    return task_rewards({"test": make_task(**functions)})


def broken(completion, sol, **kw):
    raise KeyError("target")


def test_a_reward_that_raises_on_every_completion_is_said_with_its_error(tiny_text, tmp_path, capsys):
    trainer = text_trainer(tiny_text, tmp_path, reward=failing_rewards(accuracy=broken), max_steps=3)
    trainer.train()
    assert trainer.outcome.failed and trainer.outcome.nothing_scored
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")][-1]
    assert "a reward failed on every completion of 3 generations in a row (the first: " in said
    assert "KeyError: 'target'" in said and str(tmp_path / "log.jsonl") in said
    assert trainer.state.log_history[0]["rewards/accuracy_reward/failed_share"] == 1
    assert trainer.state.log_history[0]["rewards/format_reward/failed_share"] == 0


@pytest.mark.parametrize("rows", [2, 4])
def test_equal_rewards_in_all_generations_are_said(tiny_text, tmp_path, capsys, rows):
    trainer = text_trainer(tiny_text, tmp_path, rows=rows, reward=lambda completions, **_: [0.5] * len(completions))
    trainer.train()
    assert not trainer.outcome.failed
    assert "warning: nothing was learnt: in each of the 1 generations" in capsys.readouterr().err


def test_a_run_that_learns_says_nothing(tiny_text, tmp_path, capsys):
    trainer = text_trainer(tiny_text, tmp_path, max_steps=2)
    trainer.train()
    assert trainer.outcome.sentence() is None and not trainer.outcome.failed
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("given", [None, float("nan")])
def test_a_reward_that_never_applies_is_named(tiny_text, tmp_path, capsys, given):
    def sometimes(completions, **keywords):
        return [given] * (len(completions) - 1) + [1.0]

    def never(completions, **keywords):
        return [given] * len(completions)

    trainer = text_trainer(tiny_text, tmp_path, reward=[length_reward, sometimes, never], max_steps=2)
    trainer.train()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(said) == 1 and said[0].startswith("warning: never scored no completion of the run"), said


class Trainer:
    reward_funcs = []

    class args:
        output_dir = "runs/mine"


@pytest.mark.parametrize(
    ("shares", "failed"),
    [([0, 1, 1, 1, 0], True), ([1, 1, 0, 1, 1], False), ([1, 1], True), ([0.5] * 9, False), ([], False)],
)
def test_three_generations_in_a_row_or_all_end_with_an_error(shares, failed):
    outcome = Outcome(Trainer)
    for share in shares:
        outcome.add({"rewards/a/failed_share": share, "rewards/b/failed_share": 0.0})
        outcome.add({"answer/zero_spread": 0.5})
    assert outcome.failed == failed
    assert bool(outcome.sentence()) == any(shares)
    if shares == [0.5] * 9:
        assert "a reward failed on 50.0% of the completions" in outcome.sentence()


def test_errors_timeouts_and_infinities_count():
    counts = {"rewards/a/failed": [1.0], "rewards/a/timeout": [2.0], "rewards/a/non_finite": [1.0]}
    assert failure_sums(counts, ["a", "b"], 8) == {"rewards/a/failed_share": (4.0, 8), "rewards/b/failed_share": (0, 8)}


LOGS = {
    "loss": 0.0, "reward": 0.123456, "rewards/accuracy_reward/mean": 0.5, "rewards/format_reward/mean": 1.0,
    "rollout/failed_share": 0.0, "rewards/accuracy_reward/failed_share": 0.25, "answer/zero_spread": 0.75,
    "grad_norm": 12.34567, "step_time": 123.456, "thought/unclosed_share": 0.1, "tokens/generated": 123456.0,
}  # fmt: skip


def test_the_step_line_shows_failed_and_zero_spread_shares_in_80_columns():
    (line,) = step_lines(LOGS, 12345, 100000)
    assert "failed 25%" in line and "flat 75%" in line and "reward 0.123" in line
    assert len(line) <= WIDTH < 80
    (short,) = step_lines({"loss": 0.0, "reward": 1.0, "inter/zero_spread": 1.0}, 1, 2)
    assert short == "step 1/2: reward 1, flat 100%"
    lines = step_lines({f"eval_{'a' * 60}/accuracy": 0.5, "eval_b/n": 3}, 1, 2)
    assert len(lines) == 2 and max(map(len, lines)) <= WIDTH
    assert step_lines({"train_runtime": 3.0}, 1, 2) == []


def test_the_line_of_a_warm_start_shows_its_loss_and_no_speeds():
    assert step_lines({"loss": 1.5, "grad_norm": 2.0, "epoch": 1.0}, 1, 2) == ["step 1/2: loss 1.5, grad 2"]
    evaluation = {"eval_loss": 0.3, "eval_runtime": 2.0, "eval_samples_per_second": 3.0, "eval_steps_per_second": 1.0}
    assert step_lines(evaluation, 1, 2) == ["step 1/2 evaluation: loss 0.3"]


def test_without_a_terminal_there_is_one_line_per_step_and_no_bar(capsys):
    progress, state = ShortProgress(bars=False), TrainerState(is_world_process_zero=True, max_steps=2)
    progress.on_train_begin(None, state, TrainerControl())
    for step in (1, 2):
        state.global_step = step
        progress.on_step_end(None, state, TrainerControl())
        progress.on_log(None, state, TrainerControl(), logs=LOGS | {"num_tokens": 5.0})
    progress.on_train_end(None, state, TrainerControl())
    out, err = capsys.readouterr()
    assert [re.match(r"step \d/2: ", line) is not None for line in out.splitlines()] == [True, True]
    assert err == ""
