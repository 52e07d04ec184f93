"""scripts/eval/eval.py: what it writes, what it refuses, and that an adapter is really used."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file

from model.loading import load_policy
from scripts.eval import eval as script


@pytest.fixture
def manifest(tmp_path):
    """Six trajectory records with pictures of several sizes, odd characters in the second."""
    records = []
    for i in range(6):
        size = (84 + 14 * (i % 3), 84 + 28 * (i % 2))
        Image.new("RGB", size, (40 * i, 90, 120)).save(tmp_path / f"{i}.png")
        record = {"id": f"r{i}", "image": f"{i}.png", "question": "Move to the red cube." + " Now." * (i % 4)}
        records.append(record | {"question_type": "trajectory-sharerobot", "answer": [[10.0, 20.0], [50.0, 45.0]]})
    records[1]["note"] = "\u2028 \u00e9"
    (tmp_path / "data.json").write_text(json.dumps(records))
    source = {"json_path": "data.json", "data_root": ".", "data_modality": "image", "sampling_strategy": "all"}
    (tmp_path / "data.yaml").write_text(json.dumps({"datasets": [source]}))
    return str(tmp_path / "data.yaml")


@pytest.fixture
def run(manifest, tmp_path, tiny_model_dir):
    """Runs eval.py on the six records; returns its exit status."""

    def run(*flags, out="out", model=tiny_model_dir):
        given = ["--dataset", manifest, "--output_dir", tmp_path / out, "--max_new_tokens", 24, *flags]
        given += ["--model_name_or_path", model] if model else []
        return script.main([str(flag) for flag in given])

    return run


@pytest.fixture
def adapter(tiny_model_dir, tmp_path):
    """A saved LoRA adapter that changes the model, with the processor beside it."""
    module, model, processor = load_policy(str(tiny_model_dir), dtype="float32", max_pixels=84 * 84)
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=module.lora_target_modules(model), init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    processor.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]


def test_writes_a_line_a_record_and_metrics_by_task_type(run, tmp_path):
    assert run() == 0
    predictions = lines(tmp_path / "out")
    assert [p["id"] for p in predictions] == [f"r{i}" for i in range(6)]
    assert predictions[1]["record"]["extra"]["note"] == "\u2028 \u00e9"
    assert predictions[1]["image_size"] == [98, 112]
    result = json.loads((tmp_path / "out" / "metrics.json").read_text())
    metrics = result["metrics"]["trajectory-sharerobot"]
    assert (metrics["n"], result["counts"]["items"]) == (6, 6)
    assert {"dfd_px", "hausdorff_px", "rmse_px", "endpoint_px", "format", "accuracy"} <= set(metrics)
    assert (result["settings"]["temperature"], result["settings"]["dtype"]) == (0.0, "float32")


def test_the_frame_of_the_models_coordinates_is_asked_for_scored_and_recorded(run, tmp_path):
    assert run("--coordinate_frame", "norm1000", "--limit", 1) == 0
    (prediction,) = lines(tmp_path / "out")
    assert "0 to 1000" in prediction["record"]["messages"][0]["content"][-1]["text"]
    width, height = prediction["image_size"]
    assert prediction["processed_size"] == [1000, 1000]
    expected = [[10 / width * 1000, 20 / height * 1000], [50 / width * 1000, 45 / height * 1000]]
    assert prediction["sol"] == [pytest.approx(point) for point in expected]
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["coordinate_frame"] == "norm1000"


def test_greedy_in_batches_is_greedy_one_by_one(run, tmp_path):
    assert run("--batch_size", 6) == 0
    assert run("--batch_size", 1, out="alone") == 0
    assert lines(tmp_path / "alone") == lines(tmp_path / "out")


def test_sampling_repeats_with_the_seed_and_changes_with_it(run, tmp_path):
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run("--temperature", 1, "--seed", seed, out=out) == 0
    texts = [[p["completion"] for p in lines(tmp_path / out)] for out in "abc"]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_other_settings_in_the_same_folder_are_refused(run, tmp_path, capsys):
    assert run() == 0
    before = lines(tmp_path / "out")
    assert run("--temperature", 1) == 2
    assert "holds predictions of another evaluation (other temperature)" in capsys.readouterr().err
    assert lines(tmp_path / "out") == before
    assert run("--temperature", 1, "--overwrite") == 0
    assert lines(tmp_path / "out") != before


def test_an_adapter_alone_is_enough_and_is_used(run, adapter, tmp_path):
    assert run(out="base") == 0
    assert run("--adapter_path", adapter, out="adapted", model=None) == 0
    base, adapted = lines(tmp_path / "base"), lines(tmp_path / "adapted")
    assert [p["completion"] for p in base] != [p["completion"] for p in adapted]
    # the pixel budget is that of training, as the processor beside the adapter has it, unless a flag says otherwise
    assert all(p["processed_size"][0] * p["processed_size"][1] <= 84 * 84 for p in adapted)
    assert run("--adapter_path", adapter, "--max_pixels", 112 * 112, out="larger", model=None) == 0
    assert max(p["processed_size"][0] * p["processed_size"][1] for p in lines(tmp_path / "larger")) > 84 * 84


def test_an_adapter_with_renamed_weights_is_refused(run, adapter, capsys):
    file = adapter / "adapter_model.safetensors"
    weights = {name.replace("language_model.", ""): weight for name, weight in load_file(file).items()}
    save_file(weights, file)
    assert run("--adapter_path", adapter) == 2
    assert "does not fit" in capsys.readouterr().err


def test_new_weights_in_the_adapter_folder_are_another_evaluation(run, adapter, tmp_path, capsys):
    assert run("--adapter_path", adapter) == 0
    file = adapter / "adapter_model.safetensors"
    save_file({name: weight * 2 for name, weight in load_file(file).items()}, file)
    assert run("--adapter_path", adapter) == 2
    assert "another evaluation: choose a new folder" in capsys.readouterr().err


def test_model_and_adapter_folders_swapped_give_a_sentence(run, adapter, tiny_model_dir, capsys):
    assert run(model=adapter) == 2
    assert "--adapter_path" in capsys.readouterr().err
    assert run("--adapter_path", tiny_model_dir) == 2
    assert "--model_name_or_path" in capsys.readouterr().err


def test_bad_media_stop_or_are_counted(run, tmp_path, capsys):
    (tmp_path / "3.png").write_bytes(b"<html>")
    assert run() == 2
    err = capsys.readouterr().err
    assert "'r3'" in err
    assert "3.png" in err
    assert run("--on_bad_media", "skip") == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["metrics"]["trajectory-sharerobot"]["n_load_error"] == 1
    assert metrics["counts"]["load_error"] == 1
    assert [p["id"] for p in lines(tmp_path / "out")] == [f"r{i}" for i in range(6)]


def test_limit_takes_the_first_records(run, tmp_path):
    assert run("--limit", 2) == 0
    assert [p["id"] for p in lines(tmp_path / "out")] == ["r0", "r1"]


def test_the_checkpoints_of_a_run_give_a_table_and_a_curve(run, adapter, tmp_path, capsys):
    for step in (2, 10):
        shutil.copytree(adapter, tmp_path / "run" / f"checkpoint-{step}")
    file = tmp_path / "run" / "checkpoint-2" / "adapter_model.safetensors"
    save_file({name: weight / 100 for name, weight in load_file(file).items()}, file)
    assert run("--adapter_path", tmp_path / "run", "--checkpoints", "all", model=None) == 0
    said = capsys.readouterr().out
    assert re.search(r"step +2 +10\n", said)
    assert "trajectory-sharerobot, accuracy by step" in said
    steps = json.loads((tmp_path / "out" / "checkpoints.json").read_text())["steps"]
    assert [step["step"] for step in steps] == [2, 10]
    one, two = (lines(tmp_path / "out" / f"checkpoint-{step}") for step in (2, 10))
    assert [p["completion"] for p in one] != [p["completion"] for p in two]
    assert run("--adapter_path", tmp_path / "run", "--checkpoints", "3", model=None) == 2
    assert "has no checkpoint-3, there are 2, 10" in capsys.readouterr().err
    assert run("--adapter_path", adapter, "--checkpoints", "all", model=None) == 2
    assert "holds no folder checkpoint-STEP" in capsys.readouterr().err


def set_to_zero(folder):
    """A save at step 1 under a warm-up whose first learning rate is 0."""
    file = folder / "adapter_model.safetensors"
    save_file({name: weight * ("lora_B" not in name) for name, weight in load_file(file).items()}, file)


def test_a_checkpoint_that_cannot_be_used_is_named_and_the_others_go_on(run, adapter, tmp_path, capsys):
    for step in (1, 2, 3):
        shutil.copytree(adapter, tmp_path / "run" / f"checkpoint-{step}")
    set_to_zero(tmp_path / "run" / "checkpoint-1")
    (tmp_path / "run" / "checkpoint-3" / "adapter_model.safetensors").unlink()
    assert run("--adapter_path", tmp_path / "run", "--checkpoints", "all", model=None) == 0
    said = capsys.readouterr().out
    assert re.search(r"step 1 is left out: .*checkpoint-1: every lora_B is zero", said)
    assert re.search(r"step 3 is left out: .*checkpoint-3 has an adapter_config.json but no weights", said)
    assert re.search(r"step +2\n", said)
    steps = json.loads((tmp_path / "out" / "checkpoints.json").read_text())["steps"]
    assert [set(step) for step in steps] == [{"step", "fault"}, {"step", "metrics", "intervals"}, {"step", "fault"}]
    assert run("--adapter_path", tmp_path / "run", "--checkpoints", "1", "3", model=None) == 2
    assert "no checkpoint can be evaluated; the last one: " in capsys.readouterr().err


def test_an_adapter_that_was_never_trained_is_refused(run, adapter, capsys):
    set_to_zero(adapter)
    assert run("--adapter_path", adapter) == 2
    assert "every lora_B is zero" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--batch_size", 0], "--batch_size 0: it must be at least 1"),
        (["--temperature", -1], "--temperature -1.0: it must be at least 0"),
        (["--temperature", "nan"], "--temperature nan"),
        (["--dataset", "none.yaml"], "none.yaml"),
        (["--engine", "vllm", "--vllm_mode", "server"], "--vllm_mode is a flag of training: an evaluation starts vLLM"),
        (["--vllm_server_base_url=http://node7:8000"], "--vllm_server_base_url is a flag of training"),
        (["--use_vllm", "true"], "--use_vllm is a flag of training"),
    ],
)
def test_mistakes_give_one_sentence(run, capsys, flags, words):
    assert run(*flags) == 2
    assert words in capsys.readouterr().err


def test_nothing_to_evaluate(run, capsys):
    assert run(model=None) == 2
    assert "nothing to evaluate" in capsys.readouterr().err


def test_an_adapter_of_another_size_is_refused(run, adapter, tiny_text_dir, tmp_path, capsys):
    assert run("--adapter_path", adapter, model=tiny_text_dir) == 2
    assert "does not fit" in capsys.readouterr().err
    assert not (tmp_path / "out" / "predictions.jsonl").exists()
