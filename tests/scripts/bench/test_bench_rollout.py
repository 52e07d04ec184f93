"""The benchmarks of rollouts and of whole steps run and report what they promise; the plot reads their files."""

import importlib.util
import json
import subprocess
import sys

import pytest
import yaml
from bench_cases import ROOT
from bench_model import PRESETS, build_model, build_processor
from limit import bytes_of_tree
from small_benchmarks import PROMPT, ROWS, TREE, metrics_of

from config.model_config import GRPOModelConfig


@pytest.mark.slow
def test_rollout(tmp_path):
    metrics = metrics_of("rollout", tmp_path)
    assert (metrics["prompt_tokens"], metrics["tree_tokens"], metrics["stock_row_tokens"]) == (PROMPT, TREE, ROWS)
    assert metrics["token_ratio"] == pytest.approx((4 * PROMPT + ROWS) / (PROMPT + TREE))
    assert metrics["limit_of_cost"] == pytest.approx(1 / metrics["token_ratio"])
    assert metrics["speedup"] == pytest.approx(metrics["stock_4_rows_s"] / metrics["T2A2_s"])
    assert metrics["cost_vs_T4A1"] == pytest.approx(metrics["T2A2_s"] / metrics["T2A1_s"])
    assert metrics["cost_vs_stock_T4A1"] == pytest.approx(metrics["T2A2_s"] / metrics["stock_2_rows_s"])


@pytest.mark.slow
def test_whole_step(tmp_path):
    metrics = metrics_of("whole_step", tmp_path)
    assert (metrics["leaves"], metrics["unique_tokens"]) == (4, PROMPT + TREE)
    assert metrics["row_tokens"] == 4 * PROMPT + ROWS
    assert metrics["speedup"] == pytest.approx(metrics["stock_s"] / metrics["ours_s"])
    assert metrics["speedup_lowest"] == metrics["speedup"] == metrics["speedup_highest"], "one round"
    assert metrics["tower_calls_per_picture"] == 1
    trained = metrics_of("whole_step", tmp_path, "--train_tower")
    assert trained["tower_calls_per_picture"] == 2, "rollout and policy pass"


@pytest.mark.slow
@pytest.mark.parametrize("script", ["rollout", "whole_step", "train_step"])
def test_a_benchmark_trains_an_adapter_as_users_do(tmp_path, script):
    metrics = metrics_of(script, tmp_path, "--lora")
    assert metrics["speedup"] > 0
    if script == "rollout":
        assert 0 < metrics["share_of_bandwidth"] < 1
        assert metrics["share_of_bandwidth"] == pytest.approx(metrics["step_ms_at_bandwidth"] / metrics["step_ms"])
    if script == "train_step":
        assert metrics["max_grad_gap"] < 1e-4


def test_the_gpu_preset_is_the_recipe():
    """Lengths, adapter and pixel limit are those that users train with."""
    recipe = yaml.safe_load((ROOT / "config" / "recipes" / "grpo_ma_qwen2_5_vl_3b.yaml").read_text())
    preset = PRESETS["gpu"]
    sizes = preset["sizes"]
    assert (sizes["think_num"], sizes["answer_num"]) == (recipe["think_num"], recipe["answer_num"])
    assert (sizes["thought"], sizes["answer"]) == (recipe["max_thought_length"], recipe["max_answer_length"])
    assert 0.9 * recipe["max_pixels"] < (14 * sizes["grid"]) ** 2 <= recipe["max_pixels"]
    defaults = GRPOModelConfig()
    assert preset["lora"]["lora_dropout"] == recipe["lora_dropout"]
    assert (preset["lora"]["r"], preset["lora"]["lora_alpha"]) == (defaults.lora_r, defaults.lora_alpha)
    assert preset["dtype"] == "bfloat16" and recipe["bf16"]


def test_a_step_reads_the_language_model_and_the_live_rows():
    model = build_model(PRESETS["cpu"], build_processor())
    language = sum(weight.nbytes for name, weight in model.named_parameters() if "visual." not in name)
    sizes = {"think_num": 2, "answer_num": 3, "thought": 2, "answer": 3}
    total, steps = bytes_of_tree(model, 10, sizes)
    token = 2 * 8 * 2 * 64 * 4  # keys and values, layers, heads, head size, float32
    assert steps == 2 + 2
    assert total == steps * language + token * (2 * 11 + 2 * 12 + 6 * 13 + 6 * 14)


@pytest.mark.slow
def test_the_gpu_preset_says_what_it_needs():
    import torch

    if torch.cuda.is_available():
        pytest.skip("a CUDA device is visible")
    command = [sys.executable, "scripts/bench/train_step.py", "--preset", "gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "needs a CUDA device and none is visible: use --preset cpu" in done.stderr


def test_the_plot_is_a_picture_or_says_what_is_missing(tmp_path):
    for name in ("rollout", "whole_step"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"speedup": 3.0, "token_ratio": 6.7}))
    command = [sys.executable, "scripts/bench/plot.py", *map(str, tmp_path.glob("*.json"))]
    command += ["--plot", str(tmp_path / "out.png")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if importlib.util.find_spec("matplotlib") is None:
        assert done.returncode == 2
        assert "pip install matplotlib" in done.stderr
    else:
        assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
