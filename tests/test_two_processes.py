"""Two CPU processes through the launcher: ZeRO-2 as on a GPU node, and groups that span processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def launch(folder: Path, *flags: str, deepspeed: str) -> tuple[str, dict]:
    """Output and last log of a three-step run with two processes."""
    environment = os.environ | {
        "PYTHON": sys.executable,
        "DEEPSPEED_CONFIG": deepspeed,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = ["bash", str(ROOT / "scripts/run_grpo_lora.sh"), "--nproc", "2", "--config"]
    command += [str(ROOT / "config/recipes/grpo_ma_demo.yaml"), "--output_dir", str(folder), "--max_steps", "3"]
    command += ["--per_device_train_batch_size", "16", "--logging_steps", "1", "--ddp_timeout", "120", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return done.stdout, [entry for entry in history if "loss" in entry]


@pytest.mark.slow
def test_the_launcher_trains_under_zero_2_on_two_processes(tmp_path):
    output, history = launch(tmp_path, deepspeed=str(ROOT / "scripts/zero2.json"))
    assert "layout: 2 process(es) on cpu, DeepSpeedEngine, ZeRO stage 2" in output
    assert [entry["step"] for entry in history] == [1, 2, 3]
    assert all(entry["grad_norm"] > 0 for entry in history)
    assert (tmp_path / "adapter_model.safetensors").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["true", "false"])
def test_a_group_spans_processes_or_lives_on_one(tmp_path, sync):
    output, _ = launch(tmp_path, "--sync_prompt_across_ranks", sync, "--log_completions", "true", deepspeed="none")
    assert "layout: 2 process(es) on cpu, DistributedDataParallel" in output
    pandas = pytest.importorskip("pandas")
    table = pandas.read_parquet(next((tmp_path / "completions").glob("*00001.parquet")))
    prompts = [re.sub(r"\s+", " ", prompt) for prompt in table["prompt"]]
    assert len(prompts) == 32
    assert (prompts[:16] == prompts[16:]) == (sync == "true")
    assert table["advantage"].abs().max() > 0.1
    # advantages of a group add up to zero: over both processes' rows, or over each one's own
    halves = table["advantage"][:16].sum(), table["advantage"][16:].sum()
    assert abs(sum(halves)) < 1e-3
    if sync == "false":
        assert max(map(abs, halves)) < 1e-3
