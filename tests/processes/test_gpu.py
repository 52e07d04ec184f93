"""On a GPU: the launcher's runs in bfloat16, packed against dense in float32, and two processes over NCCL."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from paths import ROOT
from safetensors.torch import load_file

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


def launch(folder, recipe: str, *flags: str, processes: int = 1) -> tuple[str, list[dict]]:
    """Output and logged steps of a short run of a demo recipe through the launcher."""
    command = ["bash", str(ROOT / "scripts/run_grpo_lora.sh"), "--nproc", str(processes)]
    command += ["--config", str(ROOT / "config/recipes" / recipe), "--output_dir", str(folder), "--max_steps", "2"]
    command += ["--logging_steps", "1", "--ddp_timeout", "120", *flags]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return done.stdout, [entry for entry in history if "loss" in entry]


def largest_gap(left, right) -> float:
    one, other = (load_file(folder / "adapter_model.safetensors") for folder in (left, right))
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize(
    ("recipe", "rows"), [("grpo_ma_demo.yaml", 32), ("tree_adv_demo.yaml", 32), ("tree_grpo_demo.yaml", 24)]
)
def test_a_method_trains_in_bfloat16_under_zero_2(tmp_path, recipe, rows):
    output, steps = launch(tmp_path, recipe, "--per_device_train_batch_size", str(rows))
    assert f"1 process(es) on {DEVICE}" in output
    assert "ZeRO stage 2" in output
    assert len(steps) == 2
    assert all(math.isfinite(step["loss"]) and math.isfinite(step["grad_norm"]) for step in steps)
    assert max(step["grad_norm"] for step in steps) > 0


def test_packed_and_dense_learn_the_same_weights_in_float32(tmp_path):
    flags = ["--dtype", "float32", "--bf16", "false", "--optim", "sgd", "--learning_rate", "0.1", "--warmup_steps", "0"]
    flags += ["--max_steps", "1", "--per_device_train_batch_size", "16", "--save_strategy", "no"]
    for sharing in ("on", "off"):
        launch(tmp_path / sharing, "grpo_ma_demo.yaml", *flags, "--prefix_sharing", sharing)
    moved = load_file(tmp_path / "on" / "adapter_model.safetensors")
    assert max(moved[name].abs().max() for name in moved if "lora_B" in name) > 1e-4
    assert largest_gap(tmp_path / "on", tmp_path / "off") < 1e-5


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices are visible")
def test_two_processes_train_over_nccl(tmp_path):
    output, steps = launch(tmp_path, "grpo_ma_demo.yaml", "--per_device_train_batch_size", "16", processes=2)
    assert f"2 process(es) on {DEVICE}" in output
    assert len(steps) == 2
