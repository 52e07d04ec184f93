"""Runs that are stopped or killed and go on, as processes: nothing is lost, whoever sent the signal."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from paths import ROOT

from config.output import checkpoint_to_resume

pytestmark = pytest.mark.slow
ENVIRONMENT = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
DEMO = ["--config", ROOT / "config/recipes/grpo_ma_demo.yaml", "--per_device_train_batch_size", "16"]
DEMO += ["--disable_tqdm", "true", "--logging_steps", "1", "--ddp_timeout", "60"]


def run(*command) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=180, env=ENVIRONMENT)


def test_sigterm_to_the_launcher_saves_and_ends_well_and_another_layout_is_told(tmp_path):
    log, output = tmp_path / "log", tmp_path / "run"
    command = ["bash", ROOT / "scripts/run_grpo_lora.sh", "--nproc", "2", *DEMO, "--max_steps", "40"]
    with open(log, "w") as file:
        process = subprocess.Popen([*command, "--output_dir", output], stdout=file, stderr=file, env=ENVIRONMENT)
    until = time.monotonic() + 150
    while "'loss'" not in log.read_text() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0, log.read_text()[-3000:]
    assert "SIGTERM: a checkpoint will be saved after the last step of this generation" in log.read_text()
    assert "stopped by SIGTERM after step" in log.read_text() and "Traceback" not in log.read_text()
    checkpoint = checkpoint_to_resume("auto", str(output))
    layout = json.loads((output / checkpoint / "layout.json").read_text())
    assert (layout["processes"], layout["zero_stage"], layout["optimizer"]["learning_rate"]) == (2, 2, 4e-4)

    alone = [sys.executable, ROOT / "train.py", *DEMO, "--output_dir", output, "--resume", "auto"]
    refused = run(*alone)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "saved by 2 processes under ZeRO-2, and this run has 1 process without DeepSpeed" in refused.stderr
    mixed = run(*alone, "--resume_weights_only", "true")
    assert mixed.returncode == 2 and "which a run from step 0 would overwrite: resume from it" in mixed.stderr
    flags = ["--resume", checkpoint, "--resume_weights_only", "true", "--output_dir", tmp_path / "alone"]
    fresh = run(*alone[:-4], *flags, "--max_steps", "1", "--save_strategy", "no")
    assert fresh.returncode == 0, fresh.stderr[-2000:]
    assert f"weights of {checkpoint}, with a new optimiser, from step 0" in fresh.stdout


# No prompt's mean reward reaches 0.9, so every prompt of every generation is redrawn.
REDRAW = "--on_zero_spread redraw --max_redraws 1 --keep_between 0.9 1.2"


@pytest.mark.parametrize(("processes", "further"), [(1, ""), (2, ""), (1, REDRAW)])
def test_killed_runs_go_on_and_end_where_an_uninterrupted_one_does(tmp_path, processes, further):
    metrics = tmp_path / "metrics.json"
    flags = ["--kills", "2" if processes == 1 else "1", "--steps", "3", "--processes", str(processes)]
    flags += ["--train", further] if further else []
    done = run(sys.executable, ROOT / "scripts/bench/kill_resume.py", *flags, "--json", metrics)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(metrics.read_text())
    assert found["kills"] >= 1 and found["lost_checkpoints"] == 0
    assert found["max_weight_gap"] <= (0 if processes == 1 else 1e-6)
