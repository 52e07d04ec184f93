"""scripts/train/sft.py: an optimizer step is one mean over its learnt tokens; and how a warm start goes on."""

import json
import math

import pytest
import torch
from paths import ROOT
from safetensors.torch import load_file

from scripts.train import sft

IMAGE = ROOT / "metadata" / "demo" / "trajectory" / "images" / "demo-train-00000.png"
THOUGHTS = ("Up.", "The cube is on the right of the gripper, and higher.", "The red cube is on the right.", "Go.")


@pytest.fixture
def start(tmp_path, tiny_model_dir, one_thread):
    """Trains on four records of different length with more flags; returns the status."""
    records = [
        {"id": f"r{i}", "image": str(IMAGE), "question_type": "trajectory-sharerobot", "thought": thought,
         "question": "Move the gripper to the red cube.", "answer": [[10.0, 20.0], [50.0, 45.0]]}
        for i, thought in enumerate(THOUGHTS)
    ]  # fmt: skip
    (tmp_path / "data.json").write_text(json.dumps(records))
    (tmp_path / "data.yaml").write_text("datasets:\n- json_path: data.json\n")

    def main(out, *more) -> int:
        flags = ["--model_name_or_path", tiny_model_dir, "--dataset", tmp_path / "data.yaml", "--use_cpu"]
        flags += ["--output_dir", tmp_path / out, "--disable_tqdm", "true", "--logging_steps", 1, "--lora_rank", 8]
        flags += ["--optim", "sgd", "--learning_rate", 0.1, "--lr_scheduler_type", "constant", *more]
        return sft.main([str(flag) for flag in flags])

    return main


def history(folder, name: str) -> list[float]:
    entries = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry[name] for entry in entries if name in entry]


def test_micro_batches_of_one_row_are_one_batch_of_four(start, tmp_path):
    flags = ["--max_steps", 1, "--save_strategy", "no", "--max_grad_norm", 0]
    assert start("one", *flags, "--per_device_train_batch_size", 4) == 0
    assert start("four", *flags, "--per_device_train_batch_size", 1, "--gradient_accumulation_steps", 4) == 0
    one, four = (history(tmp_path / name, "loss")[0] for name in ("one", "four"))
    assert four == pytest.approx(one, rel=1e-5)
    one, four = (history(tmp_path / name, "grad_norm")[0] for name in ("one", "four"))
    assert four == pytest.approx(one, rel=1e-4)
    one, four = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("one", "four"))
    moved = [name for name in one if "lora_B" in name]
    change = torch.cat([one[name].flatten() for name in moved])
    gap = torch.cat([(one[name] - four[name]).flatten() for name in moved])
    assert change.norm() > 1e-4
    assert gap.norm() < 1e-4 * change.norm()


SAVING = ("--save_steps", 1, "--per_device_train_batch_size", 2)


def test_a_finished_run_is_not_trained_past_its_end(start, tmp_path, capsys):
    assert start("run", "--max_steps", 3, *SAVING) == 0
    before = load_file(tmp_path / "run" / "adapter_model.safetensors")
    assert start("run", "--max_steps", 3, *SAVING, "--resume_from_checkpoint", "auto") == 0
    assert "checkpoint-3 is the end of the run" in capsys.readouterr().out
    assert not (tmp_path / "run" / "checkpoint-4").exists()
    after = load_file(tmp_path / "run" / "adapter_model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--learning_rate", "0.2"], "its optimiser has learning_rate 0.1, and this run's 0.2 would have no effect"),
        (["--optim", "adamw_torch"], "its optimiser has optim sgd, and this run's adamw_torch would have no effect"),
        (["--lora_rank", "4"], "its adapter has lora_r 8, and this run's 4"),
        (["--lora_rank", "0"], "it holds an adapter, and this run trains all weights"),
        (["--per_device_train_batch_size", "1"], "it was saved with records per process and step 2, and with"),
    ],
)  # fmt: skip
def test_another_run_does_not_go_on_from_a_checkpoint(start, tmp_path, capsys, flags, sentence):
    assert start("run", "--max_steps", 1, *SAVING) == 0
    assert start("run", "--max_steps", 2, *SAVING, "--resume_from_checkpoint", "auto", *flags) == 2
    error = capsys.readouterr().err
    assert f"checkpoint-1: {sentence}" in error and "go on as it was started, or begin anew in another" in error


def test_an_adapter_that_goes_on_equals_one_that_was_not_interrupted(start, tmp_path):
    flags = ["--optim", "adamw_torch", "--learning_rate", 1e-3, *SAVING]
    assert start("whole", "--max_steps", 2, *flags) == 0
    assert start("parts", "--max_steps", 1, *flags) == 0
    assert (tmp_path / "parts" / "checkpoint-1" / "layout.json").exists()
    assert start("parts", "--max_steps", 2, *flags, "--resume_from_checkpoint", "auto") == 0
    whole, parts = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_loss_that_is_no_number_ends_the_run(start, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sft.F, "cross_entropy", lambda *args, **kwargs: torch.tensor(math.nan))
    assert start("run", "--max_steps", 1) == 2
    assert "sft.py: step 1: the loss is nan; nothing was trained on it" in capsys.readouterr().err
    assert not (tmp_path / "run" / "adapter_model.safetensors").exists()
