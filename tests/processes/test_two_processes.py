"""Two CPU processes through the launcher: ZeRO-2 as on a GPU node, groups that span processes, and two nodes."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from safetensors.torch import load_file

ZERO2 = str(ROOT / "scripts/zero2.json")


def start(folder: Path, *flags: str, deepspeed: str, nproc: int = 2, **variables) -> subprocess.Popen:
    """The launcher on three steps of the demo."""
    environment = os.environ | {
        "PYTHON": sys.executable,
        "DEEPSPEED_CONFIG": deepspeed,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        **variables,
    }
    command = ["bash", str(ROOT / "scripts/run_grpo_lora.sh"), "--nproc", str(nproc), "--config"]
    command += [str(ROOT / "config/recipes/grpo_ma_demo.yaml"), "--output_dir", str(folder), "--max_steps", "3"]
    command += ["--per_device_train_batch_size", "16", "--logging_steps", "1", "--ddp_timeout", "90", *flags]
    command += ["--log_completions", "true"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=environment, cwd=ROOT, text=True, **pipes)


def finish(running: subprocess.Popen) -> str:
    """Its output; fails where it failed, and ends it where it hangs."""
    try:
        output, _ = running.communicate(timeout=170)
    except subprocess.TimeoutExpired:
        running.terminate()
        raise
    assert running.returncode == 0, output[-5000:]
    return output


def launch(folder: Path, *flags: str, deepspeed: str) -> tuple[str, list[dict]]:
    """Output and log of a three-step run with two processes."""
    output = finish(start(folder, *flags, deepspeed=deepspeed))
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return output, [entry for entry in history if "loss" in entry]


def completions(folder: Path, step: int = 1):
    """The table of all processes' completions of a step, the first process's half first."""
    pandas = pytest.importorskip("pandas")
    return pandas.read_parquet(next((folder / "completions").glob(f"*0000{step}.parquet")))


def largest_gap(left: Path, right: Path) -> float:
    one, other = (load_file(folder / "adapter_model.safetensors") for folder in (left, right))
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("deepspeed", [ZERO2, "none"], ids=["zero2", "ddp"])
def test_two_nodes_equal_one(tmp_path, deepspeed):
    """Two launchers on this machine, each a node of one process, against one node of two."""
    output, history = launch(tmp_path / "one", deepspeed=deepspeed)
    layout = "DeepSpeedEngine, ZeRO stage 2" if deepspeed == ZERO2 else "DistributedDataParallel"
    assert f"layout: 2 process(es) on cpu, {layout}" in output
    assert [entry["step"] for entry in history] == [1, 2, 3]
    assert all(entry["grad_norm"] > 0 for entry in history)
    nodes = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "deepspeed": deepspeed, "nproc": 1}
    running = [start(tmp_path / "two", **nodes, NODE_RANK=str(rank)) for rank in range(2)]
    try:
        outputs = [finish(one) for one in running]
    finally:
        for one in running:
            one.terminate()
    assert f"layout: 2 process(es) on cpu, {layout}" in outputs[0]
    assert largest_gap(tmp_path / "one", tmp_path / "two") == 0
    assert completions(tmp_path / "one", 3).equals(completions(tmp_path / "two", 3))


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["true", "false"])
def test_a_group_spans_processes_or_lives_on_one(tmp_path, sync):
    output, _ = launch(tmp_path, "--sync_prompt_across_ranks", sync, deepspeed="none")
    assert "layout: 2 process(es) on cpu, DistributedDataParallel" in output
    table = completions(tmp_path)
    prompts = [re.sub(r"\s+", " ", prompt) for prompt in table["prompt"]]
    assert len(prompts) == 32
    assert (prompts[:16] == prompts[16:]) == (sync == "true")
    texts = table["completion"].tolist()
    assert len(set(texts[:16]) & set(texts[16:])) < 4, "processes draw the same rollouts"
    assert table["advantage"].abs().max() > 0.1
    # advantages of a group add up to zero: over both processes' rows, or over each one's own
    halves = table["advantage"][:16].sum(), table["advantage"][16:].sum()
    assert abs(sum(halves)) < 1e-3
    if sync == "false":
        assert max(map(abs, halves)) < 1e-3


@pytest.mark.slow
def test_a_batch_spans_processes(tmp_path):
    """REINFORCE++ normalises the rewards of all 32 completions; the processes hold two different prompts."""
    changes = {"method": "reinforce_plus_plus", "num_generations": 16, "max_completion_length": 120}
    launch(tmp_path, *(f"--{name}={value}" for name, value in changes.items()), deepspeed="none")
    table = completions(tmp_path)
    rewards = 0.2 * table["format_reward"] + table["accuracy_reward"]
    assert len(set(table["prompt"])) == 2
    wanted = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert table["advantage"].tolist() == pytest.approx(wanted.tolist(), abs=1e-3)
    assert abs(table["advantage"][:16].sum()) > 0.1  # the half of one process does not sum to 0
