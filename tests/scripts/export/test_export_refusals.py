"""grpo-ma export: one sentence for what other tools cannot run, and nothing is written."""

import json
import shutil

import pytest
from paths import ROOT

DEMO = ROOT / "metadata" / "demo"
PICTURE = str(DEMO / "trajectory" / "images" / "demo-test-00000.png")
PICTURES = DEMO / "trajectory_test.yaml"
RECORD = {"id": "r", "question_type": "ocr-vqa", "question": "What?", "answer": "x", "image": PICTURE}
AGENT = {"id": "r", "question_type": "search_qa", "question": "Who?", "answer": "x"}


@pytest.fixture
def refusal(export, tiny_model_dir, tmp_path, capsys):
    """The sentence with which an export of one record ends; checks that nothing is left behind."""

    def call(*flags, tool="lmms-eval", model=("--model_name_or_path", tiny_model_dir), record=RECORD):
        (tmp_path / "test.jsonl").write_text(json.dumps(record) + "\n")
        before = sorted(tmp_path.rglob("*"))
        words = (tool, *model, "--dataset", tmp_path / "test.jsonl", "--output_dir", tmp_path / "out", *flags)
        assert export(*words) == 2
        assert sorted(tmp_path.rglob("*")) == before
        return capsys.readouterr().err.strip().splitlines()[-1]

    return call


def test_a_model_type_that_the_tool_changes_pictures_of(refusal, tiny_text_dir):
    said = refusal(model=("--model_name_or_path", tiny_text_dir))
    assert (
        said.startswith("export.py: model type 'qwen2' is not exported: lmms-eval is known to") and "qwen2_5_vl" in said
    )
    assert "VLMEvalKit is known to" in refusal(model=("--model_name_or_path", tiny_text_dir), tool="vlmevalkit")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (AGENT, "record 'r' is of the agent task search_qa, whose environment answers between turns"),
        (RECORD | {"image": None, "video": PICTURE}, "record 'r' has a video: other tools choose its frames by rules"),
    ],
)
@pytest.mark.parametrize("tool", ["lmms-eval", "vlmevalkit"])
def test_records_that_no_other_tool_can_run(refusal, record, words, tool):
    assert words in refusal(record={key: value for key, value in record.items() if value is not None}, tool=tool)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({key: value for key, value in RECORD.items() if key != "image"}, "record 'r' has no picture"),
        (RECORD | {"question": "What is in <image>?"}, "record 'r' has a picture inside its question"),
    ],
)
def test_records_that_vlmevalkits_table_cannot_hold(refusal, record, words):
    said = refusal(record=record, tool="vlmevalkit")
    assert words in said and "export to lmms-eval" in said


def test_tasks_with_different_system_prompts_for_vlmevalkit(refusal, tmp_path, monkeypatch):
    text = (ROOT / "task" / "TEMPLATE.py").read_text(encoding="utf-8")
    (tmp_path / "own").mkdir()
    for name in ("first", "second"):
        own = text.replace('"my-task"', f'"{name}"').replace(
            '    # "system_prompt": "..."', f'    "system_prompt": "{name}"'
        )
        (tmp_path / "own" / f"{name}.py").write_text(own)
    monkeypatch.setenv("GRPO_MA_TASKS", str(tmp_path / "own"))
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(RECORD | {"id": "s", "question_type": "second"}) + "\n")
    said = refusal(
        "--dataset", tmp_path / "test.jsonl", other, tool="vlmevalkit", record=RECORD | {"question_type": "first"}
    )
    assert "the tasks first, second have different system prompts" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--limit", 0), "--limit 0: it must be at least 1."),
        (("--temperature", "-0.5"), "--temperature -0.5: it must be at least 0."),
        (("--temperature", "nan"), "--temperature nan: it must be at least 0."),
        (("--max_new_tokens", 0), "--max_new_tokens 0: it must be at least 1."),
        (("--dtype", "bfloat16"), "--dtype bfloat16 is of merging an adapter"),
        (("--min_pixels", 784, "--max_pixels", 1568), "a picture of 28 x 28 pixels would be resized by other tools"),
        (("--thought_end", " "), "thought_end=' ' is white space alone"),
        (("--chat_template_kwargs", '{"enable_thinking": false}'), "does not read 'enable_thinking'"),
    ],
)
def test_settings(refusal, flags, words):
    assert words in refusal(*flags)


def test_models_that_are_not_there(refusal, tmp_path):
    assert "nothing to export: give --model_name_or_path, --adapter_path, or both." in refusal(model=())
    assert "--model_name_or_path Qwen/X is not a folder" in refusal(model=("--model_name_or_path", "Qwen/X"))
    assert "has no adapter_config.json" in refusal(model=("--adapter_path", tmp_path))


def test_tags_that_the_tokenizer_lists_as_special(refusal, model_copy):
    changed = model_copy("tokenizer_config.json", ('"extra_special_tokens": [', '"extra_special_tokens": ["<answer>",'))
    said = refusal(model=("--model_name_or_path", changed))
    assert "the tokenizer lists <answer> as special, and lmms-eval takes special tokens out of completions" in said


def test_a_folder_that_is_not_empty(export, tiny_model_dir, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for words in (("samples", "--predictions", tmp_path), ("lmms-eval", "--dataset", "x")):
        assert export(*words, "--output_dir", tmp_path) == 2
        assert f"--output_dir {tmp_path} is not an empty folder: name a new one." in capsys.readouterr().err


def words_for(model, out) -> tuple:
    return ("lmms-eval", "--model_name_or_path", model, "--dataset", PICTURES, "--limit", 1, "--output_dir", out)


def test_an_empty_folder_is_filled_where_it_is(export, tiny_model_dir, tmp_path, monkeypatch):
    """The working folder, a link, and one in which a killed export left its files."""
    for name in ("here", "real", "killed"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "killed" / ".part" / "tests").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    for out in (".", tmp_path / "link", tmp_path / "killed"):
        assert export(*words_for(tiny_model_dir, out)) == 0
    for name in ("here", "real", "killed"):
        assert {one.name for one in (tmp_path / name).iterdir()} == {"qwen2_5_vl", "run.sh", "tests"}


def test_a_folder_that_cannot_be_written(export, tiny_model_dir, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    assert export(*words_for(tiny_model_dir, out)) == 2
    said = capsys.readouterr().err
    assert f"export.py: --output_dir {out} cannot be written (Not a directory): name another folder." in said


def test_a_failed_export_takes_back_the_folders_that_it_created(export, tmp_path):
    assert export(*words_for("Qwen/X", tmp_path / "a" / "b" / "c")) == 2
    assert not (tmp_path / "a").exists()


def test_an_interrupted_export_leaves_nothing_behind(export, tiny_model_dir, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("model.registry.module_for", interrupt)
    assert export(*words_for(tiny_model_dir, tmp_path / "out")) == 130
    assert capsys.readouterr().err.endswith("export.py: interrupted: nothing was written.\n")
    assert not (tmp_path / "out").exists()


def test_a_shipped_manifest_from_any_folder(export, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("--model_name_or_path", tiny_model_dir, "--dataset", "metadata/demo/ocr_test.yaml", "--limit", 1)
    assert export("lmms-eval", *words, "--output_dir", "out") == 0


PREDICTION = {"id": "r", "question_type": "ocr-vqa", "status": "ok", "accuracy": 1.0, "format": 1.0, "tokens": 3}
PREDICTION |= {
    "completion": "a",
    "prediction": "x",
    "answer": "x",
    "sol": "x",
    "record": {"images": [], "messages": []},
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples": [{}, {}]}, "record 'r' has several completions, and a sample of lmms-eval holds one"),
        ({"status": "oom"}, "no record has a completion: evaluate again."),
        ({"question_type": "unknown"}, "no task has question_type 'unknown'"),
        (None, "has no settings.json of eval.py"),
    ],
)
def test_predictions_that_are_no_samples(export, tmp_path, capsys, change, words):
    shutil.rmtree(tmp_path / "eval", ignore_errors=True)
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "predictions.jsonl").write_text(json.dumps(PREDICTION | (change or {})) + "\n")
    if change is not None:
        settings = {"thought_end": "</think>", "coordinate_frame": "processed"}
        (tmp_path / "eval" / "settings.json").write_text(json.dumps(settings))
    assert export("samples", "--predictions", tmp_path / "eval", "--output_dir", tmp_path / "out") == 2
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()
