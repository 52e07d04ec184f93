"""A warm start on two processes takes the step that one process takes on the same records."""

import json
import sys

import pytest
from paths import ROOT
from safetensors.torch import load_file

sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from two_processes import start

IMAGE = ROOT / "metadata" / "demo" / "trajectory" / "images" / "demo-train-00000.png"
THOUGHTS = ("Up.", "The cube is on the right of the gripper, and higher.", "The red cube is on the right.", "Go.")


@pytest.mark.slow
def test_tokens_are_averaged_over_all_processes(tmp_path):
    common = {"image": str(IMAGE), "question_type": "trajectory-sharerobot", "question": "Move.", "answer": [[9, 9], [50, 45]]}  # fmt: skip # noqa: E501
    (tmp_path / "data.json").write_text(json.dumps([common | {"id": f"{i}", "thought": t} for i, t in enumerate(THOUGHTS)]))  # fmt: skip # noqa: E501
    (tmp_path / "data.yaml").write_text("datasets:\n- json_path: data.json\n")
    flags = ["--model_name_or_path", ROOT / "scripts/demo/tiny_model", "--dataset", tmp_path / "data.yaml"]
    flags += ["--use_cpu", "true", "--max_steps", 1, "--optim", "sgd", "--learning_rate", 0.1, "--max_grad_norm", 0]
    flags += ["--lora_rank", 8, "--save_strategy", "no", "--logging_steps", 1, "--lr_scheduler_type", "constant"]
    found = {}
    for processes, rows in ((1, 4), (2, 2)):
        out = tmp_path / str(processes)
        script = [ROOT / "scripts/train/sft.py", *flags, "--output_dir", out, "--per_device_train_batch_size", rows]
        printed = start([str(word) for word in script], processes, timeout=150)
        assert f"layout: {processes} process(es) on cpu" in printed
        state = json.loads((out / "trainer_state.json").read_text())
        found[processes] = state["log_history"][0], load_file(out / "adapter_model.safetensors")
    (one, weights), (two, others) = found[1], found[2]
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
    assert max((weights[name] - others[name]).abs().max().item() for name in weights) < 1e-6
