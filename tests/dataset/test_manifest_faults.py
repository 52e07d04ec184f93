"""Manifests: paths that no file can have, records taken twice, shares below one record, ids from file names."""

import json

import pytest
from manifest_cases import RECORD, manifest

from dataset.dataset_grpo import build_dataset
from dataset.manifest import sample
from task.task_loader import load_tasks


@pytest.fixture(scope="module")
def tasks():
    return load_tasks()


@pytest.mark.parametrize("strategy", ["first:0.0000001%", "random:0.00000001%", "end:0.1%"])
def test_a_tiny_share_is_still_one_record(strategy):
    assert len(sample(list("abc"), strategy, "here", "")) == 1


def test_a_folder_is_no_manifest(tmp_path, tasks):
    with pytest.raises(ValueError, match="is a folder: give the path of a YAML file"):
        build_dataset(tmp_path, tasks)


@pytest.mark.parametrize("second", ["", "  sampling_strategy: end:2\n"])
def test_a_record_that_a_manifest_takes_twice(tmp_path, tasks, second):
    path = manifest(tmp_path, "\n".join([RECORD % "null"] * 3))
    path.write_text(path.read_text() + "- json_path: data.jsonl\n" + second)
    with pytest.raises(
        ValueError, match=r"data\.jsonl line [12] \(id 'data:[01]'\): the manifests take this record twice"
    ):
        build_dataset(path, tasks)


@pytest.mark.parametrize("path", ["x" * 5000 + ".yaml", json.dumps([json.loads(RECORD % "null")] * 50)])
def test_a_manifest_that_no_file_can_be(tasks, path):
    with pytest.raises(ValueError, match="does not exist: give the path of a YAML file"):
        build_dataset(path, tasks)


@pytest.mark.parametrize("key", ["json_path", "data_root"])
def test_a_path_too_long_inside_a_manifest(tmp_path, tasks, key):
    path = manifest(tmp_path, RECORD % "null")
    long = "x" * 5000 + ".jsonl"
    path.write_text(
        path.read_text().replace("data.jsonl", long) if key == "json_path" else f"{path.read_text()}  {key}: {long}\n"
    )
    with pytest.raises(ValueError, match=f"data\\.yaml, entry 1: {key} .*(does not exist|is not a folder)"):
        build_dataset(path, tasks)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["a.jsonl", "b.jsonl"], ["a:0", "b:0"]),
        (["x/data.jsonl", "y/data.jsonl", "c.jsonl"], ["x/data:0", "y/data:0", "c:0"]),
        (["x/train/data.jsonl", "y/train/data.jsonl"], ["x/train/data:0", "y/train/data:0"]),
        (["data.jsonl", "data.json"], ["data.jsonl:0", "data.json:0"]),
    ],
)
def test_records_without_ids_get_their_own_whatever_their_files_are_called(tmp_path, tasks, files, names):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"[{RECORD % 'null'}]" if file.endswith("n") else RECORD % "null")
    (tmp_path / "m.yaml").write_text("datasets:\n" + "".join(f"- json_path: {file}\n" for file in files))
    assert [json.loads(row["record"])["id"] for row in build_dataset(tmp_path / "m.yaml", tasks)] == names
