"""scripts/eval/eval.py ends with one sentence and status 2, and names the record only where the record is at fault."""

import json
import runpy

import pytest
from paths import ROOT

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
    assert "thought_end='think' cannot be told from <think>, <answer> and </answer>: give a text such as" in message
