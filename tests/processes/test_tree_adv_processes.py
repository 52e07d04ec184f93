"""tree_adv on two processes under ZeRO-2: both use the threshold that the tokens of both asked for."""

import json
import os
import subprocess
import sys

import pytest
from paths import ROOT

SHORT = {"max_steps": 2, "per_device_train_batch_size": 16, "logging_steps": 1, "ddp_timeout": 90, "save_steps": 1}


@pytest.mark.slow
def test_two_processes_train_under_zero2(tmp_path):
    environment = os.environ | {
        "PYTHON": sys.executable,
        "DEEPSPEED_CONFIG": str(ROOT / "scripts" / "zero2.json"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = ["bash", str(ROOT / "scripts" / "run_grpo_lora.sh"), "--nproc", "2", "--output_dir", str(tmp_path)]
    command += ["--config", str(ROOT / "config" / "recipes" / "tree_adv_demo.yaml"), "--save_strategy", "steps"]
    command += [word for name, value in SHORT.items() for word in (f"--{name}", str(value))]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "DeepSpeedEngine, ZeRO stage 2" in ended.stdout
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    first, second = [entry for entry in state["log_history"] if "loss" in entry]
    assert second["fork/threshold"] == pytest.approx(first["fork/measured"])
    assert first["fork/count"] > 0 and 0 < first["fork/saved"] < 1
    assert first["grad_norm"] > 0
