"""A run's report as an artifact of its trackers: offline runs of the real packages, and one that fails."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from report.tracked import TrackedReport

RUN = [
    *("--config", "config/recipes/grpo_ma_demo.yaml", "--max_steps", "2", "--logging_steps", "1"),
    *("--log_trees", "every:1", "--warmup_steps", "0", "--per_device_train_batch_size", "16"),
]


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_run_keeps_its_report_and_trees_in_the_tracker(tracker, tmp_path):
    pytest.importorskip(tracker)
    places = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "trackio")}
    command = [sys.executable, "train.py", *RUN, "--output_dir", str(tmp_path / "run"), "--report_to", tracker]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | places, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "did not take" not in done.stdout
    report = (tmp_path / "run" / "report.html").read_bytes()
    assert b"image/" in report, "the trees' picture"
    if tracker == "wandb":
        record = b"".join(path.read_bytes() for path in tmp_path.rglob("*.wandb"))
        assert b"report.html" in record
        assert b"tokens/unique" in record
    else:
        assert report in [path.read_bytes() for path in tmp_path.rglob("blobs/**/*") if path.is_file()]


def test_a_tracker_that_fails_is_named_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    def log_artifact(path, **given):
        raise OSError("no space left")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(log_artifact=log_artifact))
    (tmp_path / "log.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    callback = TrackedReport({}, ["wandb"])
    state = SimpleNamespace(is_world_process_zero=True)
    callback.on_train_end(SimpleNamespace(output_dir=str(tmp_path)), state, None)
    assert (tmp_path / "report.html").exists()
    assert "warning: wandb did not take" in capsys.readouterr().out


def test_the_report_comes_before_the_trackers_close_their_runs():
    callbacks = ["the tracker's own"]
    trainer = SimpleNamespace(
        args=SimpleNamespace(report_to=["wandb", "tensorboard"]),
        callback_handler=SimpleNamespace(callbacks=callbacks),
    )
    TrackedReport.add_to(trainer, {})
    assert isinstance(callbacks[0], TrackedReport)
    assert callbacks[0].trackers == ["wandb"]
    trainer.args.report_to = ["tensorboard"]
    callbacks.clear()
    TrackedReport.add_to(trainer, {})
    assert callbacks == []
