"""On a GPU: the launchers' layouts in bfloat16, packed passes by flex_attention, decoding without waits, the 3B model.

Not run on a GPU so far. test_device_cases.py runs the same cases on a CPU, in small.
"""

import json
import math
import os
import subprocess
import sys
import warnings

import pytest
import torch
from bench_cases import ROOT
from bench_model import PRESETS
from device_cases import (
    checkpointing_gap,
    forward_backward,
    gap_to_dense,
    grow_watched,
    packed_pass,
    text_model,
    text_prompt,
    train_two_steps,
    tree_rows,
)
from memory.estimate import Settings, peak
from memory.sizes import count, read_config
from memory.terms import Trees, Tuning
from safetensors.torch import load_file

from trainer.logprobs.tree_attention import compiled_flex

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


def launch(
    folder, recipe: str, *flags: str, processes: int = 1, script: str = "run_grpo_lora.sh", **variables: str
) -> tuple[str, list[dict]]:
    """Output and logged steps of a short run of a demo recipe through a launcher."""
    command = ["bash", str(ROOT / "scripts" / script), "--nproc", str(processes)]
    command += ["--config", str(ROOT / "config/recipes" / recipe), "--output_dir", str(folder), "--max_steps", "2"]
    command += ["--logging_steps", "1", "--ddp_timeout", "120", *flags]
    environment = os.environ | {"PYTHON": sys.executable} | variables
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


@pytest.mark.parametrize("layout", ["zero3", "fsdp2"])
@pytest.mark.parametrize("processes", [1, 2])
def test_all_weights_train_sharded(tmp_path, layout, processes):
    if torch.cuda.device_count() < processes:
        pytest.skip("fewer CUDA devices are visible")
    sharded = {} if layout == "zero3" else {"ACCELERATE_CONFIG": str(ROOT / "scripts" / "fsdp2.yaml")}
    flags = ["--per_device_train_batch_size", "16", "--save_strategy", "no", "--gradient_checkpointing", "true"]
    run = {"processes": processes, "script": "run_grpo_full.sh", **sharded}
    output, steps = launch(tmp_path, "grpo_ma_demo.yaml", *flags, **run)
    assert f"{processes} process(es) on {DEVICE}" in output
    assert len(steps) == 2
    assert all(math.isfinite(step["grad_norm"]) for step in steps)


def test_an_adapter_trains_with_flex_attention_checkpointing_and_dropout(tmp_path):
    flags = ["--lora_dropout", "0.05", "--gradient_checkpointing", "true", "--bf16", "true"]
    _, steps = launch(tmp_path, "grpo_ma_demo.yaml", *flags, "--per_device_train_batch_size", "32")
    assert all(0 < step["grad_norm"] < math.inf for step in steps)


@pytest.mark.parametrize("head_size", [32, 128])
def test_packed_and_dense_agree(head_size):
    largest, _ = gap_to_dense(DEVICE, torch.float32, head_size)
    assert largest < 1e-3
    largest, mean = gap_to_dense(DEVICE, torch.bfloat16, head_size)
    assert mean < 0.02
    assert largest < 0.5


def test_checkpointing_draws_dropout_again():
    assert checkpointing_gap(DEVICE, torch.float32) < 1e-3


def test_sixteen_thousand_slots_never_build_the_square(record_property):
    """Scores of all pairs would take 2 GB per layer in bfloat16 alone."""
    module, model = text_model(DEVICE, torch.bfloat16, 128, checkpointing=True)
    found = forward_backward(module, model, text_prompt(65), tree_rows(8, 8, 1000, 130))
    record_property("peak_mb", found.peak / 1e6)
    record_property("seconds", found.seconds)
    assert found.slots == 64 + 8 * 1000 + 64 * 130 == 16384
    assert found.peak < 1.5e9
    assert 0 < found.gradient < math.inf


def test_two_compiles_serve_every_number_of_slots():
    torch._dynamo.reset()
    compiled_flex.cache_clear()
    torch._dynamo.utils.counters.clear()
    module, model = text_model(DEVICE, torch.bfloat16, 64)
    for branch in (20, 33, 47, 80, 131, 260):
        forward_backward(module, model, text_prompt(40), tree_rows(3, 3, 100, branch))
        with torch.no_grad():
            packed_pass(module, model, text_prompt(40), tree_rows(3, 3, 100, branch))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_a_decoding_step_never_waits_for_the_gpu(tiny_vlm_on_gpu):
    steps = grow_watched(
        *tiny_vlm_on_gpu, 100, lambda running: torch.cuda.set_sync_debug_mode("error" if running else "default")
    )
    assert steps > 100


def test_decoding_waits_once_per_step(tiny_vlm_on_gpu):
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            steps = grow_watched(*tiny_vlm_on_gpu, 100, lambda running: None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in said if "synchronizing CUDA operation" in str(warning.message)]
    assert steps <= len(waits) <= steps + 20  # the prefill waits as well


def test_two_steps_of_the_3b_model_stay_below_the_estimate(tmp_path, record_property):
    """Random weights; the recipe's lengths, adapter and picture; one process without DeepSpeed."""
    preset = PRESETS["gpu"]
    sizes, lora = preset["sizes"], preset["lora"]
    found = train_two_steps(preset, sizes, tmp_path)
    record_property("step_seconds", found["step_seconds"])
    record_property("peak_gb", found["peak"] / 1e9)
    assert found["steps"] == 2
    assert all(0 < norm < math.inf for norm in found["grad_norms"])
    visual = (sizes["grid"] // 2) ** 2
    shape = sizes["think_num"], sizes["answer_num"], sizes["thought"], sizes["answer"]
    trees = Trees(visual + sizes["text_tokens"], visual, *shape)
    tuning = Tuning("lora", rank=lora["r"], dropout=lora["lora_dropout"])
    model = count(read_config("Qwen2.5-VL-3B-Instruct"))
    assert found["peak"] < peak(model, tuning, trees, Settings(True, None, 1))


@pytest.fixture
def tiny_vlm_on_gpu(tiny_model_dir):
    """(module, model in bfloat16 on the GPU, processor) of the shipped model."""
    from model.registry import module_for

    module = module_for(str(tiny_model_dir))
    model = module.load_model(str(tiny_model_dir), dtype="bfloat16", attn_implementation="sdpa").eval().to(DEVICE)
    return module, model, module.load_processor(str(tiny_model_dir))
