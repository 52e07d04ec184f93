"""log.jsonl: a line a log step while a run trains, the same metrics as every back end; and the bars of a run."""

import json
import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainer_cases import text_trainer
from transformers import TrainerCallback, TrainerControl, TrainerState

from trainer.logs.progress import RolloutBar, ShortProgress
from trainer.logs.run_log import RunLog


class BackEnd(TrainerCallback):
    """Stands for TensorBoard, wandb and trackio, which all take `on_log`."""

    def __init__(self):
        self.entries = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.entries.append(dict(logs))


def entries(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def trained(tiny_text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trainer = text_trainer(tiny_text, folder, max_steps=2, report_to="tensorboard")
    back_end = BackEnd()
    trainer.add_callback(back_end)
    trainer.train()
    return folder, trainer, back_end


def test_every_log_step_is_a_line_with_all_metrics(trained):
    folder, trainer, back_end = trained
    start, *lines, end = entries(folder)
    assert (start["event"], end["event"], start["max_steps"]) == ("start", "end", 2)
    assert [line["step"] for line in lines] == [entry["step"] for entry in trainer.state.log_history]
    for line, sent, saved in zip(lines, back_end.entries, trainer.state.log_history, strict=True):
        # transformers takes total_flos out of the last entry before it reaches the later ones
        assert line.keys() - {"step", "time"} == sent.keys() == saved.keys() - {"step", "total_flos"}
        assert {name: (line[name], value) for name, value in saved.items() if line.get(name, value) != value} == {}
    assert lines[0]["rollout/tokens_per_second"] > 0
    assert start["time"] <= lines[0]["time"] <= end["time"]


def test_tensorboard_gets_the_same_metrics(trained):
    folder, _, _ = trained
    board = next(path.parent for path in folder.rglob("events.out.tfevents.*"))
    reader = EventAccumulator(str(board)).Reload()
    first = {k: v for k, v in entries(folder)[1].items() if v is not None}  # None: a mean over nothing
    tags = {tag.removeprefix("train/") for tag in reader.Tags()["scalars"]}
    assert first.keys() - {"step", "time"} <= tags
    assert reader.Scalars("train/reward")[0].value == pytest.approx(first["reward"], rel=1e-6)


def test_the_start_names_what_is_not_default(trained):
    start = entries(trained[0])[0]
    assert (start["think_num"], start["learning_rate"], start["lr_scheduler_type"]) == (2, 1e-2, "constant")
    assert "adam_beta1" not in start
    assert "hub_token" not in start


class Arguments:
    def __init__(self, folder):
        self.output_dir = str(folder)


def test_a_resumed_run_appends_after_a_half_line_and_a_new_one_starts_afresh(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.logs.run_log.changed_arguments", lambda args: {})
    (tmp_path / "log.jsonl").write_text('{"step": 5}\n{"step": 10, "rew')
    state = TrainerState(is_world_process_zero=True, global_step=5, max_steps=20)
    log = RunLog()
    log.on_train_begin(Arguments(tmp_path), state, TrainerControl())
    log.on_log(None, state, None, logs={"reward": math.nan, "grad_norm": math.inf, "note": "x", "list": [math.nan, 1]})
    kept, start, line = entries(tmp_path)
    assert (kept, start["event"]) == ({"step": 5}, "start")
    assert (line["reward"], line["grad_norm"], line["note"], line["list"]) == (None, None, "x", [None, 1])
    RunLog().on_train_begin(Arguments(tmp_path), TrainerState(is_world_process_zero=True), TrainerControl())
    assert [entry.get("event") for entry in entries(tmp_path)] == ["start"]


def test_other_processes_write_nothing_and_a_full_disk_is_reported_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("trainer.logs.run_log.changed_arguments", lambda args: {})
    other = RunLog()
    other.on_train_begin(Arguments(tmp_path), TrainerState(is_world_process_zero=False), TrainerControl())
    other.on_log(None, TrainerState(), None, logs={"reward": 1.0})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "log.jsonl").mkdir()
    state = TrainerState(is_world_process_zero=True)
    log = RunLog()
    log.on_train_begin(Arguments(tmp_path), state, TrainerControl())
    log.on_log(None, state, None, logs={"reward": 1.0})
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_the_rollout_bar_expects_what_the_generation_before_needed(capsys, monkeypatch):
    monkeypatch.setattr(RolloutBar, "DELAY", 0.0)
    bar = RolloutBar(shown=True)
    for counts in ((10, 40), (15, 30)):
        with bar as progress:
            for count in counts:
                progress(count)
            shown = str(bar._bar)
        assert bar.tokens == counts[-1]
    assert "30/40" in shown
    assert "75%" in shown
    assert bar.seconds > 0
    with RolloutBar(shown=False) as quiet:
        quiet(5)
    assert quiet.tokens == 5


def test_the_training_bar_shows_tokens_a_second(monkeypatch):
    clock = iter((100.0, 104.0))
    monkeypatch.setattr("trainer.logs.progress.time.monotonic", lambda: next(clock))
    progress, state = ShortProgress(), TrainerState(is_world_process_zero=True, max_steps=4, global_step=2)
    shown = []

    class Bar:
        def set_postfix_str(self, text, refresh):
            shown.append(text)

        def write(self, text):
            pass

    progress.training_bar = Bar()
    progress.on_log(None, state, None, logs={"num_tokens": 1000.0, "reward": 0.5})
    progress.on_log(None, state, None, logs={"num_tokens": 9000.0, "reward": 0.5})
    assert shown == ["2,000 tokens/s"]
