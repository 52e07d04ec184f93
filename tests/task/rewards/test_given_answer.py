"""An answer in JSON text is read by every task that wants numbers, in training and evaluation and by every loader."""

import json

import pytest
from PIL import Image
from task_cases import TASKS, metrics, prediction, said, scored

from dataset.dataset_grpo import build_dataset, read_row, rows_from_records
from task.rewards.given_answer import given_answer

BOX, PATH = [120, 48, 256, 220], [[120, 48], [256, 220]]
SAME = ((640, 480), (640, 480))
WITH_NUMBERS = {
    "affordance-sharerobot": (BOX, BOX),
    "object-detection": ([{"bbox_2d": BOX, "label": "cup"}], [{"bbox_2d": BOX, "label": "cup"}]),
    "demand-prediction": ({"point_2d": [120, 48]}, [120, 48]),
    "trajectory-sharerobot": (PATH, PATH),
}
WITH_OBJECTS = {
    "manipulation-sim": {"simulator": "metaworld", "task": "drawer-close", "seed": 0},
    "code-generation": {"tests": ["assert f(2) == 4"]},
    "reasoning-gym": {"dataset": "chain_sum", "entry": {"question": "4 + 3 = ?", "answer": "7", "metadata": {}}},
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_json_text_scores_as_its_value(name):
    answer, right = WITH_NUMBERS[name]
    assert scored(name, said(right), json.dumps(answer), SAME)[1] == pytest.approx(1.0)
    assert scored(name, said(right), answer, SAME) == scored(name, said(right), json.dumps(answer), SAME)


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_every_loader_reads_json_text(name, tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    Image.new("RGB", SAME[0]).save(tmp_path / "a.png")
    answer, right = WITH_NUMBERS[name]
    record = {"question": "Where?", "answer": json.dumps(answer), "question_type": name, "image": "a.png"}
    (tmp_path / "a.json").write_text(json.dumps([record]))
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    parquet.write_table(arrow.Table.from_pylist([record]), tmp_path / "a.parquet")
    rows = [rows_from_records([record], TASKS, image_root=tmp_path)[0]]
    for ending in ("json", "jsonl", "parquet"):
        (tmp_path / "m.yaml").write_text(f"datasets:\n- json_path: a.{ending}\n  data_root: .\n")
        rows.append(build_dataset(tmp_path / "m.yaml", TASKS)[0])
    assert [read_row(row)["answer"] for row in rows] == [answer] * 4
    predicted = prediction(name, said(right), read_row(rows[0])["answer"], SAME)
    assert metrics(name, predicted)["parse_failure_rate"] == 0.0


@pytest.mark.parametrize("name", WITH_OBJECTS)
def test_tasks_that_want_an_object_read_json_text(name):
    assert given_answer(TASKS[name], json.dumps(WITH_OBJECTS[name])) == WITH_OBJECTS[name]
    record = {"question": "?", "answer": json.dumps(WITH_OBJECTS[name]), "question_type": name}
    assert read_row(rows_from_records([record], TASKS)[0])["answer"] == WITH_OBJECTS[name]


def test_a_board_in_json_text_is_a_board():
    moves = TASKS["gridworld"].self_test["right"]
    assert scored("gridworld", moves, '["SF", "HG"]')[1] == scored("gridworld", moves, ["SF", "HG"])[1] == 1.0


@pytest.mark.parametrize("name", ["ocr-vqa", "math-reasoning", "search_qa"])
@pytest.mark.parametrize("text", ["[120, 48]", '["a", "b"]', "7"])
def test_to_a_task_of_texts_a_text_stays_a_text(name, text):
    assert given_answer(TASKS[name], text) == text


@pytest.mark.parametrize("text", ["[120, 48", "B", "7", '"[1, 2]"', "[NaN, 1]", "the [left] one", "[" * 100_000])
def test_what_is_no_list_or_object_stays_a_text(text):
    assert given_answer(TASKS["demand-prediction"], text) == text


def test_a_cut_off_answer_is_named_with_its_record():
    with pytest.raises(ValueError, match=r"record 'r7'.*got '\[120, 48"):
        scored("affordance-sharerobot", said(BOX), "[120, 48")
