"""Records that a file or a caller should not hold, and the encodings and file names that are read."""

import json

import pytest
from manifest_cases import RECORD, manifest
from PIL import Image

from dataset.dataset_grpo import build_dataset, rows_from_records
from task.task_loader import load_tasks


@pytest.fixture(scope="module")
def tasks():
    return load_tasks()


@pytest.mark.parametrize(
    ("line", "fault"),
    {
        "a number that overflows": (RECORD % "[[1e999, 1], [2, 3]]", "1e999 is too large for a number"),
        "two questions": ('{"question": "a", ' + RECORD[1:] % "null", "the key 'question' occurs twice in one object"),
        "two keys further in": (RECORD % '{"x": 1, "x": 2}', "the key 'x' occurs twice"),
    }.values(),
)
def test_json_that_would_be_misread_is_refused(tmp_path, tasks, line, fault):
    with pytest.raises(ValueError, match=fault) as caught:
        build_dataset(manifest(tmp_path, line), tasks)
    assert "data.jsonl line 1 is not JSON" in str(caught.value)


def test_no_records_at_all(tasks):
    with pytest.raises(ValueError, match="there are no records: give at least one"):
        rows_from_records([], tasks)


def test_odd_file_names(tmp_path, tasks):
    from PIL import Image

    folder = tmp_path / "o dd $HOME 'q' \"d\" é漢; rm"
    folder.mkdir()
    Image.new("RGB", (56, 28)).save(folder / "a b $1 é.png")
    record = {"question": "Move.", "question_type": "trajectory-sharerobot", "answer": None, "image": "a b $1 é.png"}
    rows = build_dataset(manifest(folder, json.dumps(record)), tasks)
    assert json.loads(rows[0]["record"])["images"] == [str(folder / "a b $1 é.png")]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"answer": "a\ud800"}, "the text holds half a surrogate pair"),
        ({"image": "\ud800.png"}, "the text holds half a surrogate pair"),
        ({"caption": ["x", {"y": "\udfff"}]}, "the text holds half a surrogate pair"),
        ({"answer": float("nan")}, "the record is not JSON .*use text, finite numbers"),
        ({"answer": {1, 2}}, "the record is not JSON .*set"),
        ({"answer": {(1, 2): 3}}, "the record is not JSON .*keys"),
        ({"image": "gone.png\n"}, r"image '/.*/gone\.png\\n' does not exist"),
        ({"image": "https://example.org/a.png"}, "does not exist.*an address is not fetched"),
        ({"Image": "a.png"}, "the key 'Image' would be ignored: name it 'image'"),
        ({"img": ["a.png"]}, "the key 'img' would be ignored: name it 'image'"),
        ({"image_paths": ["a.png"]}, "the key 'image_paths' would be ignored: name it 'image'"),
        ({"VIDEO": "a.mp4"}, "the key 'VIDEO' would be ignored: name it 'video'"),
        ({"imgae": "a.png"}, "the key 'imgae' .*did you mean 'image'"),
        ({"vidoe": "a.mp4"}, "the key 'vidoe' .*did you mean 'video'"),
        ({"thougt": "first"}, "the key 'thougt' .*did you mean 'thought'"),
        ({"Thought": "first"}, "the key 'Thought' .*did you mean 'thought'"),
        ({"immage": "a.png"}, "the key 'immage' .*did you mean 'image'"),
        ({"vodeo": "a.mp4"}, "the key 'vodeo' .*did you mean 'video'"),
    ],
)
def test_records_from_memory_are_held_to_what_a_file_may_hold(tasks, changes, fault):
    raw = {"id": "r7", "question": "Move.", "question_type": "trajectory-sharerobot", "answer": None} | changes
    with pytest.raises(ValueError, match=fault) as caught:
        rows_from_records([raw], tasks)
    assert str(caught.value).startswith("record 0 (id 'r7'): ")
    str(caught.value).encode()
    assert "\n" not in str(caught.value)


OWN_KEYS = [
    "thoughts",
    "thought_id",
    "though_t",
    "image_id",
    "imageId",
    "image_w",
    "image_2",
    "image2",
    "image_a",
    "images_dir",
    "has_image",
    "n_image",
    "video2",
    "videoId",
    "video_fps",
    "n_video",
    "answers",
    "query",
    "choices",
    "caption",
    "options",
    "hint",
    "source",
    "split",
    "bbox",
    "category",
    "height",
    "usage",
    "mage_",
]


@pytest.mark.parametrize("key", OWN_KEYS)
def test_a_data_set_may_have_keys_of_its_own(tasks, key):
    raw = {"id": "r7", "question": "Move.", "question_type": "trajectory-sharerobot", "answer": None, key: "x"}
    assert len(rows_from_records([raw], tasks)) == 1


@pytest.mark.parametrize("key", ["image_path", "image_file", "picture"])
def test_a_record_with_its_picture_may_also_have_the_path_of_its_source(tmp_path, tasks, key):
    Image.new("RGB", (56, 56)).save(tmp_path / "a.png")
    raw = {"question": "Move.", "question_type": "trajectory-sharerobot", "answer": None}
    raw |= {"image": str(tmp_path / "a.png"), key: "coco/000001.jpg"}
    assert len(rows_from_records([raw], tasks)) == 1
    with pytest.raises(ValueError, match="the key 'images' would be ignored"):
        rows_from_records([raw | {"images": ["b.png"]}], tasks)


def test_a_number_under_a_name_of_media_is_data_of_ones_own(tasks):
    raw = {"question": "Move.", "question_type": "trajectory-sharerobot", "answer": None, "clip": 0.31}
    assert len(rows_from_records([raw], tasks)) == 1


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ((RECORD % "null").encode("utf-16-le"), "line 1 holds a NUL"),
        ((RECORD % "null").encode("utf-16"), "is not UTF-8"),
        ((RECORD % "null").encode() + b"\n" + bytes(100), "line 2 holds a NUL"),
        (bytes(100), "line 1 holds a NUL"),
        ((RECORD % '"caf\xe9"').encode("latin-1"), "is not UTF-8"),
    ],
)
@pytest.mark.parametrize("name", ["data.jsonl", "data.json"])
def test_files_of_another_encoding_or_with_an_end_of_zeros(tmp_path, tasks, content, fault, name):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "m.yaml").write_text(f"datasets:\n- json_path: {name}\n")
    with pytest.raises(ValueError, match=rf"{name} {fault}.*UTF-8"):
        build_dataset(tmp_path / "m.yaml", tasks)


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_marks_and_line_ends_of_other_systems(tmp_path, tasks, ends, mark):
    (tmp_path / "data.jsonl").write_bytes((mark + ends.join([RECORD % '"\u00e9"', "", RECORD % "2", ""])).encode())
    (tmp_path / "m.yaml").write_bytes((mark + ends.join(["datasets:", "- json_path: data.jsonl", ""])).encode())
    rows = build_dataset(tmp_path / "m.yaml", tasks)
    assert [json.loads(row["record"])["answer"] for row in rows] == ["\u00e9", 2]


def test_data_of_the_users_own_may_have_any_other_name(tasks):
    own = {"image_id": 7, "video_id": "v", "thoughts": 3, "thought": "I look.", "source": "x", "ids": [1]}
    raw = {"question": "Move.", "question_type": "trajectory-sharerobot", "answer": None} | own
    (row,) = rows_from_records([raw], tasks)
    assert json.loads(row["record"])["extra"] == own
