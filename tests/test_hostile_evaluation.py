"""Evaluation and adapters against broken input: one sentence that names the record or the file, status 2."""

import json
import runpy
import shutil

import pytest
from paths import ROOT

from model.loading import load_adapter, load_policy

IMAGE = ROOT / "metadata" / "demo" / "trajectory" / "images" / "demo-train-00000.png"
ANSWER = [[12.0, 25.0], [60.5, 71.0], [100.0, 110.0]]


@pytest.fixture
def evaluate(tiny_model_dir, tmp_path, capsys, one_thread):
    """eval.py's main on one record; gives (status, last line of stderr)."""
    main = runpy.run_path(str(ROOT / "scripts" / "eval" / "eval.py"))["main"]

    def call(*flags, output="out", **changes):
        record = {"id": "r", "question": "Move.", "question_type": "trajectory-sharerobot", "answer": ANSWER}
        (tmp_path / "data.jsonl").write_text(json.dumps(record | {"image": str(IMAGE)} | changes))
        (tmp_path / "data.yaml").write_text("datasets:\n- json_path: data.jsonl\n")
        words = ["--dataset", tmp_path / "data.yaml", "--output_dir", tmp_path / output, "--max_new_tokens", 2]
        status = main([str(word) for word in (*words, "--model_name_or_path", tiny_model_dir, *flags)])
        return status, [line for line in capsys.readouterr().err.replace("\r", "\n").splitlines() if line.strip()][-1]

    return call


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"answer": "x"}, "eval.py: record 'r': process_answer of"),
        ({"question": "a <|image_pad|>"}, "eval.py: record 'r': the text of the user turn contains <|image_pad|>"),
        ({"output": "data.yaml"}, "data.yaml cannot be made (File exists): name another folder."),
    ],
)
def test_what_is_wrong_is_named(evaluate, changes, sentence):
    status, message = evaluate(**changes)
    assert status == 2
    assert sentence in message


def test_a_wrong_thought_tag_is_no_records_fault(evaluate):
    status, message = evaluate("--thought_end", "think")
    assert (status, "data.jsonl" in message) == (2, False)
    assert "thought_end is 'think': give a closing tag" in message


@pytest.fixture
def adapter(tiny_vlm, tiny_model_dir, tmp_path):
    """A folder with an adapter that does something."""
    import copy

    import torch
    from peft import LoraConfig, get_peft_model

    module, model, _ = tiny_vlm
    config = LoraConfig(r=2, target_modules=module.lora_target_modules(model), base_model_name_or_path="")
    tuned = get_peft_model(copy.deepcopy(model), config)
    for name, weight in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.constant_(weight, 0.01)
    tuned.peft_config["default"].base_model_name_or_path = str(tiny_model_dir)
    tuned.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def cut_off(folder):
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:500])


def diverge(folder):
    from safetensors.torch import load_file, save_file

    file = folder / "adapter_model.safetensors"
    save_file({name: weight * float("nan") for name, weight in load_file(file).items()}, file)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut_off, "the adapter cannot be loaded .SafetensorError"),
        (diverge, "holds NaN or infinity: the training that saved it had diverged"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "adapter_config.json is not JSON"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "must hold a JSON object, not a list"),
    ],
    ids=["cut off", "NaN", "no JSON", "a list"],
)
def test_a_broken_adapter(adapter, tiny_model_dir, tiny_vlm, damage, sentence):
    import copy

    damage(adapter)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_adapter(copy.deepcopy(tiny_vlm[1]), adapter)
    assert str(adapter) in str(caught.value)


def test_an_adapter_whose_base_is_gone(adapter, tmp_path):
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "/gone"}))
    with pytest.raises(ValueError, match="adapter was trained on /gone; give its base as --model_name_or_path"):
        load_policy(None, str(adapter), dtype="float32")
    shutil.rmtree(adapter)
    with pytest.raises(ValueError, match=r"has no adapter_config\.json"):
        load_policy(None, str(adapter), dtype="float32")


@pytest.mark.parametrize(
    ("flags", "changes", "sentence"),
    [
        (["--max_stps", "1"], {}, "unknown argument --max_stps: did you mean max_steps?"),
        (["--max_steps", "1"], {"answer": "x"}, "sft.py: record 'r': process_answer of"),
        (["--max_steps", "1"], {"question": "<|image_pad|>"}, "sft.py: record 'r': the text of the user turn contains"),
        (["--num_train_epochs", "0"], {}, "sft.py: no step was trained, nothing is saved"),
    ],
    ids=["a misspelt flag", "an answer of another form", "a picture token", "no step"],
)
def test_the_warm_start_names_what_is_wrong(tiny_model_dir, tmp_path, capsys, one_thread, flags, changes, sentence):
    main = runpy.run_path(str(ROOT / "scripts" / "train" / "sft.py"))["main"]
    record = {
        "id": "r",
        "question": "Move.",
        "question_type": "trajectory-sharerobot",
        "answer": ANSWER,
        "thought": "t",
    }
    (tmp_path / "data.jsonl").write_text(json.dumps(record | {"image": str(IMAGE)} | changes))
    (tmp_path / "data.yaml").write_text("datasets:\n- json_path: data.jsonl\n")
    fixed = ["--model_name_or_path", str(tiny_model_dir), "--dataset", str(tmp_path / "data.yaml"), "--use_cpu", "true"]
    try:
        status = main([*fixed, "--output_dir", str(tmp_path / "out"), "--save_strategy", "no", *flags])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out" / "adapter_model.safetensors").exists()
