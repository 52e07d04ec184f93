"""Where the paths of a manifest lead, and record files in the place of a manifest."""

import json

import pytest
from PIL import Image

from dataset import manifest as manifest_module
from dataset.dataset_grpo import build_dataset, load_records
from dataset.manifest import print_sources, read_manifests
from task.errors import UserError
from task.task_loader import load_tasks

RECORD = {"question": "Move.", "question_type": "trajectory-sharerobot", "answer": [[1, 2], [3, 4]], "image": "a.png"}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """(checkout, working folder, manifest) with a manifest below the checkout that names paths from its root."""
    checkout, work = tmp_path / "checkout", tmp_path / "folder"
    work.mkdir()
    (checkout / "scripts" / "train").mkdir(parents=True)
    path = checkout / "scripts" / "train" / "grpo_my_task.yaml"
    path.write_text("datasets:\n- json_path: metadata/my_task_train.json\n  data_root: data/my_task\n")
    monkeypatch.chdir(work)
    monkeypatch.setattr(manifest_module, "CHECKOUT", checkout)
    return checkout, work, path


def put(folder, answer=1) -> None:
    """Data of one record below a folder."""
    (folder / "metadata").mkdir(parents=True)
    (folder / "data" / "my_task").mkdir(parents=True)
    (folder / "metadata" / "my_task_train.json").write_text(json.dumps([RECORD | {"answer": answer}]))
    Image.new("RGB", (28, 28)).save(folder / "data" / "my_task" / "a.png")


def test_what_the_manifests_folder_lacks_is_looked_for_in_the_working_folder_and_the_checkout(places, capsys):
    checkout, _, path = places
    with pytest.raises(
        UserError, match=r"scripts/train/metadata/my_task_train\.json does not exist: relative paths start"
    ):
        read_manifests(path)
    put(checkout)
    (source,) = read_manifests(path)
    print_sources([source])
    wanted = f"records {checkout}/metadata/my_task_train.json (all), media from {checkout}/data/my_task\n"
    assert capsys.readouterr().out == wanted
    assert load_records(path)[0]["images"] == [str(checkout / "data" / "my_task" / "a.png")]
    put(path.parent, answer=3)
    assert load_records(path)[0]["answer"] == 3


def test_a_working_folder_that_holds_another_file_than_the_checkout_is_refused(places, monkeypatch):
    checkout, work, path = places
    put(work, answer=2)
    assert load_records(path)[0]["answer"] == 2
    put(checkout, answer=1)
    with pytest.raises(
        UserError, match=r"json_path .* may be .*/folder/metadata/.* or .*/checkout/metadata/.*, which differ"
    ):
        read_manifests(path)
    (work / "metadata" / "my_task_train.json").unlink()
    with pytest.raises(UserError, match=r"data_root .* may be .*/folder/data/my_task or .*/checkout/data/my_task"):
        read_manifests(path)
    assert load_records(path, image_root=str(work / "data" / "my_task"))[0]["answer"] == 1
    monkeypatch.chdir(checkout)
    assert load_records(path)[0]["answer"] == 1


@pytest.mark.parametrize("ending", ["json", "jsonl", "parquet"])
def test_a_record_file_is_a_manifest_of_one_entry(tmp_path, ending):
    records = [RECORD | {"id": "r1"}, {key: value for key, value in RECORD.items() if key != "image"} | {"note": "n"}]
    path = write(tmp_path / f"records.{ending}", records)
    (tmp_path / "pictures").mkdir()
    for folder in (tmp_path, tmp_path / "pictures"):
        Image.new("RGB", (28, 28)).save(folder / "a.png")
    for root in (None, tmp_path / "pictures"):
        first, second = load_records(path, image_root=root)
        assert first["images"] == [str((root or tmp_path) / "a.png")] and second["images"] == []
        assert (first["id"], second["id"], second["extra"]) == ("r1", "records:1", {"note": "n"})
    (tmp_path / "m.yaml").write_text(f"datasets:\n- json_path: {path.name}\n  sampling_strategy: first:1\n")
    assert len(build_dataset([tmp_path / "m.yaml"], load_tasks())) == 1


def write(path, records):
    if path.suffix == ".parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        keys = {key for record in records for key in record}
        parquet.write_table(pyarrow.table({key: [one.get(key) for one in records] for key in keys}), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    else:
        path.write_text("\n".join(map(json.dumps, records)))
    return path


def test_a_table_that_is_cut_off_empty_or_holds_pictures_is_a_sentence(tmp_path):
    path = write(tmp_path / "records.parquet", [RECORD, RECORD])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(UserError, match="not a complete parquet file"):
        load_records(path)
    write(path, [RECORD | {"image": {"bytes": b"png", "path": None}}])
    with pytest.raises(UserError, match=r"row 0 holds a picture itself: convert the table with .*--format table"):
        load_records(path)
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"question": []}), path)
    with pytest.raises(UserError, match="holds no records"):
        load_records(path)
