"""scripts/train/sft.py ends with one sentence and status 2, and saves nothing."""

import json
import runpy

import pytest
from paths import ROOT

IMAGE = ROOT / "metadata" / "demo" / "trajectory" / "images" / "demo-train-00000.png"
ANSWER = [[12.0, 25.0], [60.5, 71.0], [100.0, 110.0]]


@pytest.mark.parametrize(
    ("flags", "changes", "sentence"),
    [
        (["--max_stps", "1"], {}, "unknown argument --max_stps: did you mean max_steps?"),
        (["--max_steps", "1"], {"answer": "x"}, "sft.py: record 'r': process_answer of"),
        (["--max_steps", "1"], {"question": "<|image_pad|>"}, "sft.py: record 'r': the text of the user turn contains"),
        (["--num_train_epochs", "0"], {}, "num_train_epochs=0.0 give no training step: set one"),
        (["--learning_rate", "nan"], {}, "learning_rate=nan must be a finite number of at least 0"),
        (["--report_to", "nothing"], {}, "sft.py: report_to=nothing: it is unknown or its package is not installed"),
        (
            ["--eval_strategy", "steps"],
            {},
            "sft.py: eval_strategy=steps needs held-out records: give --eval_dataset_name",
        ),
        (["--adapter_path", "absent/adapter"], {}, "absent/adapter"),
    ],
    ids=[
        "a misspelt flag",
        "an answer of another form",
        "a picture token",
        "no step",
        "a NaN",
        "a reporter",
        "no held-out records",
        "no adapter",
    ],
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
    if "absent" in sentence or "held-out" in sentence:
        assert not (tmp_path / "out").exists()
