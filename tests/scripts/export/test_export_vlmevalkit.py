"""grpo-ma export vlmevalkit: the table, the config, and the scores of its predictions."""

import ast
import json
import runpy
import subprocess

import pandas
import pytest
from paths import ROOT

from trainer.evaluation.exported import ExportedTests

NAME = "grpo_ma_trajectory-sharerobot"
RIGHT = "<think>Left.</think><answer>[[10, 20], [30, 41.5]]</answer>"


@pytest.fixture(scope="module")
def exported(export, tiny_model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vlmevalkit")
    lines = (ROOT / "metadata" / "demo" / "trajectory" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines[:3]]
    records[1]["question"] = 'Move to "B",\n\tthe second picture.'
    records[1]["image"] = [records[1]["image"], records[0]["image"]]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "test.jsonl").write_text(text, encoding="utf-8")
    root = ROOT / "metadata" / "demo" / "trajectory"
    model = ("--model_name_or_path", tiny_model_dir, "--max_pixels", 7056, "--max_new_tokens", 64)
    words = ("--dataset", folder / "test.jsonl", "--image_root", root, "--output_dir", folder / "out")
    assert export("vlmevalkit", *model, *words) == 0
    return folder / "out"


def test_the_table_has_whole_prompts_and_paths_of_pictures(exported):
    table = pandas.read_csv(exported / "tests" / f"{NAME}.tsv", sep="\t")  # as VLMEvalKit reads it
    assert list(table["index"]) == [0, 1, 2] and set(table) == {"index", "image_path", "question", "answer"}
    assert table["question"][1].startswith('Move to "B",\n\tthe second picture. First think inside <think>')
    assert json.loads(table["answer"][0])[0] == [36.0, 63.0]
    several = ast.literal_eval(table["image_path"][1])
    paths = [table["image_path"][0], *several, table["image_path"][2]]
    assert len(several) == 2 and all((exported / path).is_file() for path in paths)


def test_the_config_has_the_limits_and_decodes_greedily(exported):
    config = json.loads((exported / "config.json").read_text())
    assert config["data"] == {NAME: {"class": "CustomVQADataset", "dataset": NAME}}
    (model,) = config["model"].values()
    assert (model["min_pixels"], model["max_pixels"]) == (784, 7056)
    assert (model["top_k"], model["do_sample"], model["repetition_penalty"]) == (1, False, 1.0)
    assert (exported / model["model_path"]).is_dir() and "2_5" in model["model_path"], "its class goes by the name"
    assert subprocess.run(["bash", "-n", exported / "run.sh"]).returncode == 0


@pytest.mark.parametrize("kind", ["tsv", "json"])
def test_predictions_get_the_metrics_of_evaluation(exported, tmp_path, kind, capsys):
    file = tmp_path / f"grpo_ma_{NAME}.{kind}"
    table = pandas.DataFrame({"index": [0, 1, 2], "prediction": [RIGHT, "", " no tags"]})
    table.to_csv(file, sep="\t", index=False) if kind == "tsv" else table.to_json(file, orient="records")
    assert runpy.run_path(str(exported / "vlmevalkit_score.py"))["main"]([str(file)]) == 0
    printed = json.loads(capsys.readouterr().out)
    tests = ExportedTests(exported / "tests")
    lines = (exported / "tests" / f"{NAME}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(json.loads(line)["row"]) for line in lines]
    texts = (RIGHT, "", "no tags")
    expected = tests.summary([tests.prediction(row, text) for row, text in zip(rows, texts, strict=True)])
    assert printed == expected
    assert expected["trajectory-sharerobot"]["format"] == pytest.approx(1 / 3)


def test_files_of_other_tests_are_refused(exported, tmp_path, capsys):
    (tmp_path / "other.tsv").write_text("index\tprediction\n0\tx\n")
    (tmp_path / f"{NAME}.tsv").write_text("index\tprediction\n7\tx\n")
    main = runpy.run_path(str(exported / "vlmevalkit_score.py"))["main"]
    for name in ("other.tsv", f"{NAME}.tsv", "nothing.xlsx"):
        assert main([str(tmp_path / name)]) == 2
        assert f"{name} holds no predictions of these tests" in capsys.readouterr().err
    assert main([]) == 2
