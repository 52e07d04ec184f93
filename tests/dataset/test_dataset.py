"""Manifests and records become rows; every fault is one sentence that names the place, the value and the way out."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from dataset.dataset_grpo import build_dataset, load_media, load_records, read_row, rows_from_records
from dataset.manifest import sample
from dataset.prompts import build_messages, render_question

TEMPLATE = "{Question} Think inside <think> </think>."
TASKS = {
    "path": SimpleNamespace(config={"grpo_template": TEMPLATE}, thought_end="</think>"),
    "sum": SimpleNamespace(
        config={"grpo_template": "Q: {Question}", "system_prompt": "Use <think> and </think>."}, thought_end="</think>"
    ),
}


def record(**changes):
    """A text record; a change to ... takes the key out."""
    content = {"question": "Where?", "answer": 1, "question_type": "path"} | changes
    return {key: value for key, value in content.items() if value is not ...}


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return path


def write_manifest(folder, *entries, name="data.yaml"):
    lines = ["datasets:"]
    for entry in entries:
        lines += [f"{'- ' if n == 0 else '  '}{key}: {value}" for n, (key, value) in enumerate(entry.items())]
    (folder / name).write_text("\n".join(lines), encoding="utf-8")
    return folder / name


def build(folder, records, **entry):
    path = write_jsonl(folder / "data.jsonl", records)
    return build_dataset(write_manifest(folder, {"json_path": path.name} | entry), TASKS)


def picture(folder, name="a.png"):
    Image.new("RGB", (56, 28)).save(folder / name)
    return name


def texts(row):
    return [part.get("text", part["type"]) for part in read_row(row)["messages"][-1]["content"]]


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_is_two_strings_and_loses_nothing(tmp_path):
    raw = record(id=7, image=picture(tmp_path), answer=[[1.5, 2], None], meta={"w": 640}, weight=0.5)
    row = build(tmp_path, [raw])[0]
    assert set(row) == {"prompt", "record"}
    assert row["prompt"] == "Where? Think inside <think> </think>."
    assert read_row(row) == {
        "id": "7",
        "question_type": "path",
        "question": "Where?",
        "answer": [[1.5, 2], None],
        "images": [str(tmp_path / "a.png")],
        "videos": [],
        "messages": [
            {"role": "user", "content": [{"type": "image", "index": 0}, {"type": "text", "text": row["prompt"]}]}
        ],
        "extra": {"meta": {"w": 640}, "weight": 0.5},
    }


def test_answers_of_mixed_types_and_all_modalities_share_a_dataset(tmp_path):
    for name in ("a.png", "b.png"):
        picture(tmp_path, name)
    (tmp_path / "clip.mp4").write_bytes(b"not decoded yet")
    rows = build(
        tmp_path,
        [
            record(answer="text"),
            record(answer=[[1, 2]], image="a.png"),
            record(answer={"k": None}, image=["a.png", "b.png"]),
            record(answer=None, video="clip.mp4"),
            record(answer=0.5, image=None, video=[]),
        ],
    )
    records = [read_row(row) for row in rows]
    assert [len(r["images"]) for r in records] == [0, 1, 2, 0, 0]
    assert [len(r["videos"]) for r in records] == [0, 0, 0, 1, 0]
    assert [r["answer"] for r in records] == ["text", [[1, 2]], {"k": None}, None, 0.5]
    assert [r["id"] for r in records] == [f"data:{n}" for n in range(5)]
    assert [len(load_media(r)[0]) for r in records[:3]] == [0, 1, 2]
    # A part has no key that it does not need: a template would take {"text": ..., "image": None} for a picture.
    parts = [part for r in records for message in r["messages"] for part in message["content"]]
    assert {tuple(sorted(part)) for part in parts} == {("index", "type"), ("text", "type")}


@pytest.mark.parametrize("text", ["{0}\n{1}", "\ufeff{0}\r\n\r\n{1}\r\n", "\n  \n{0}\n\n{1}\n\n"])
def test_lines_with_byte_order_mark_crlf_and_blank_lines(tmp_path, text):
    lines = [json.dumps(record(question=q), ensure_ascii=False) for q in ("Où?\u2028", "哪里?")]
    (tmp_path / "data.jsonl").write_bytes(text.format(*lines).encode())
    records = load_records(write_manifest(tmp_path, {"json_path": "data.jsonl"}))
    assert [(r["id"], r["question"]) for r in records] == [("data:0", "Où?\u2028"), ("data:1", "哪里?")]


def test_a_json_list(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps([record(), record(id="x")], indent=1))
    rows = build_dataset(str(write_manifest(tmp_path, {"json_path": "data.json"})), TASKS)
    assert [read_row(row)["id"] for row in rows] == ["data:0", "x"]


def test_rows_without_a_manifest(tmp_path):
    rows = rows_from_records([record(image=picture(tmp_path)), record()], TASKS, image_root=tmp_path)
    assert [read_row(row)["id"] for row in rows] == ["record:0", "record:1"]
    assert read_row(rows[0])["images"] == [str(tmp_path / "a.png")]
    with pytest.raises(ValueError, match=r"^record 1: a record must be a JSON object, not 'x'"):
        rows_from_records([record(), "x"], TASKS)


# --- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "question", "expected"),
    [
        (2, "<image> or <image>?", ["image", " or ", "image", "?"]),
        (2, "Which?", ["image", "image", "Which?"]),
        (1, "what does the tag <image> mean?", ["what does the tag ", "image", " mean?"]),
        (1, r"what does the tag \<image> mean?", ["image", "what does the tag <image> mean?"]),
        (0, r"what does the tag \<image> mean?", ["what does the tag <image> mean?"]),
        (1, "<image 0-25> then?", ["image", "<image 0-25> then?"]),  # ShareRobot's frame range, not a slot
        (2, "<image> or", 1),
        (1, "<image> or <image>", 2),
        (0, "what does the tag <image> mean?", 1),
    ],
)
def test_each_picture_has_its_slot_or_all_come_first(tmp_path, images, question, expected):
    names = [picture(tmp_path, f"{n}.png") for n in range(images)]
    data = [record(question=question, image=names, id="r")]
    if isinstance(expected, int):
        with pytest.raises(ValueError, match=rf"data\.jsonl line 1 \(id 'r'\): .*{expected} slot\(s\) <image>"):
            build(tmp_path, data)
    else:
        expected[-1] += " Think inside <think> </think>."
        assert texts(build(tmp_path, data)[0]) == expected


def test_slots_name_the_pictures_in_order_and_videos_count_apart():
    made = build_messages(
        {"question": "<image> after <video> before <image>", "images": ["a", "b"], "videos": ["v"]}, TASKS["path"]
    )
    media = [(part["type"], part["index"]) for part in made[0]["content"] if part["type"] != "text"]
    assert media == [("image", 0), ("video", 0), ("image", 1)]
    made = build_messages({"question": "<video>?", "images": ["a"], "videos": ["v"]}, TASKS["path"])
    assert [part["type"] for part in made[0]["content"]] == ["image", "video", "text"]


def test_thought_tags_of_the_run_replace_those_of_the_template_only():
    tasks = {name: SimpleNamespace(config=task.config, thought_end="</analysis>") for name, task in TASKS.items()}
    question = "Copy <think> and {Question}."
    assert render_question(tasks["path"], question) == (
        "Copy <think> and {Question}. Think inside <analysis> </analysis>."
    )
    system, user = build_messages({"question": "1+1", "images": [], "videos": []}, tasks["sum"])
    assert system == {"role": "system", "content": [{"type": "text", "text": "Use <analysis> and </analysis>."}]}
    assert user == {"role": "user", "content": [{"type": "text", "text": "Q: 1+1"}]}


def test_the_models_own_template_keeps_the_question_and_every_picture(tmp_path, tiny_model_dir):
    from model.registry import module_for

    module = module_for(str(tiny_model_dir))
    processor = module.load_processor(str(tiny_model_dir))
    names = [picture(tmp_path, f"{n}.png") for n in range(2)]
    rows = build(
        tmp_path,
        [record(answer="x"), record(image=names[0], answer=1), record(image=names, question="<image> or <image>?")],
    )
    for row, pictures in zip(rows, (0, 1, 2), strict=True):
        content = read_row(row)
        encoded = module.encode(content["messages"], *load_media(content))
        text = processor.tokenizer.decode(encoded.ids)
        assert text.count("<|vision_start|>") == pictures
        assert "Think inside" in text
        assert content["question"].split("<image>")[-1] in text


# --- manifests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("all", "abcdefghij"),
        ("first:3", "abc"),
        ("end:2", "ij"),
        ("first:10%", "a"),
        ("end:25%", "hij"),  # a share is rounded up
        ("first:7%", "a"),
        ("random:100%", "abcdefghij"),
    ],
)
def test_sampling(strategy, expected):
    assert "".join(sample(list("abcdefghij"), strategy, "here", "42")) == expected


def test_a_share_is_not_pushed_up_by_floating_point():
    assert len(sample(list(range(100)), "first:7%", "here", "")) == 7


def test_random_sampling_depends_on_the_seed_and_keeps_ids(tmp_path):
    write_jsonl(tmp_path / "data.jsonl", [record(question=str(n)) for n in range(50)])
    manifest = write_manifest(tmp_path, {"json_path": "data.jsonl", "sampling_strategy": "random:20%"})
    first, again, other = (load_records(manifest, seed) for seed in (1, 1, 2))
    assert first == again
    assert len(first) == len(other) == 10
    assert first != other
    assert all(r["id"] == f"data:{r['question']}" for r in first + other)


def test_several_manifests_mix_and_paths_start_at_the_manifest(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    manifests = []
    for name in ("one", "two"):
        (tmp_path / name / "media").mkdir(parents=True)
        picture(tmp_path / name / "media")
        write_jsonl(tmp_path / name / "train.jsonl", [record(image="a.png"), record(image="a.png")])
        entry = {"json_path": "train.jsonl", "data_root": "media", "data_modality": "image"}
        manifests.append(write_manifest(tmp_path / name, entry))
    records = load_records(manifests)
    assert [r["id"] for r in records] == ["one/train:0", "one/train:1", "two/train:0", "two/train:1"]
    assert [Path(r["images"][0]).parent for r in records[1:3]] == [
        tmp_path / "one" / "media",
        tmp_path / "two" / "media",
    ]
    (tmp_path / "one" / "media" / "a.png").unlink()
    assert len(build_dataset(manifests, TASKS, on_bad_media="skip")) == 4
    elsewhere = load_records(manifests, image_root=tmp_path / "two" / "media")
    assert {r["images"][0] for r in elsewhere} == {str(tmp_path / "two" / "media" / "a.png")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dataset:\n- json_path: data.jsonl", "exactly one top key"),
        ("datasets: []", "at least one entry"),
        ("datasets:\n- data_root: x", "has no json_path"),
        (
            "datasets:\n- json_path: data.jsonl\n  sampling: all",
            "unknown key 'sampling' .did you mean 'sampling_strategy'",
        ),
        ("datasets:\n- json_path: none.jsonl", r"none\.jsonl does not exist"),
        ("datasets:\n- json_path: data.csv", r"must end in \.json"),
        ("datasets:\n- json_path: data.jsonl\n  sampling_strategy: last:3", "'last:3' must be all, first:N"),
        ("datasets:\n- json_path: data.jsonl\n  sampling_strategy: first:0", "'first:0' must be"),
        ("datasets:\n- json_path: data.jsonl\n  sampling_strategy: random:101%", "'random:101%' must be"),
        ("datasets:\n- json_path: data.jsonl\n  sampling_strategy: first:2", "asks for 2 records but the file has 1"),
        (
            "datasets:\n- json_path: data.jsonl\n  data_modality: images",
            "'images' is not one of .*did you mean 'image'",
        ),
        ("datasets:\n- json_path: data.jsonl\n  data_root: nowhere", "nowhere is not a folder"),
        ("datasets:\n- json_path: data.jsonl\n  sampling_strategy: 3", "must be text, not 3"),
        ("datasets:\n- json_path: data.jsonl\ndatasets:\n- json_path: data.jsonl", "'datasets' occurs twice"),
        ("datasets: [", "is not valid YAML"),
    ],
)
def test_a_faulty_manifest_is_one_sentence(tmp_path, text, words):
    write_jsonl(tmp_path / "data.jsonl", [record()])
    (tmp_path / "data.csv").touch()
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        load_records(tmp_path / "data.yaml")
    assert "\n" not in str(error.value)
    assert "data.yaml" in str(error.value)


def test_manifests_that_are_none(tmp_path):
    with pytest.raises(ValueError, match=r"none\.yaml does not exist"):
        load_records(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match="image_root 'nowhere' is not a folder"):
        load_records(tmp_path / "none.yaml", image_root="nowhere")


# --- faulty records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"question": ...}, "question is missing"),
        ({"question": " "}, "question is ' '"),
        ({"question": 5}, "question is 5"),
        ({"question_type": ...}, "question_type is missing"),
        ({"question_type": ..., "question_typ": "path"}, "did you mean 'question_typ'"),
        ({"question_type": "paths"}, "'paths'.*did you mean 'path'"),
        ({"answer": ...}, "answer is missing"),
        ({"id": 1.5}, "id 1.5 must be text or a whole number"),
        ({"image": "none.png"}, r"none\.png' does not exist.*set on_bad_media to skip"),
        ({"image": "folder"}, "folder' is a folder"),
        ({"image": ["a.png", 3]}, "must be a path or a list of paths"),
        ({"image": ""}, "must be a path"),
        ({"video": "none.mp4"}, r"none\.mp4' does not exist"),
        ({"images": ["a.png"]}, "'images' would be ignored: name it 'image'"),
        ({"question": "\ud800"}, "half a surrogate pair"),
    ],
)
def test_a_faulty_record_is_one_sentence_with_file_and_line(tmp_path, changes, words):
    picture(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=words) as error:
        build(tmp_path, [record(), record(**changes)])
    assert f"{tmp_path / 'data.jsonl'} line 2" in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_json_is_named_by_line(tmp_path):
    good = json.dumps(record())
    manifest = write_manifest(tmp_path, {"json_path": "data.jsonl"})
    for bad in ('{"question": ', '{"answer": NaN}', "[" * 100_000):
        (tmp_path / "data.jsonl").write_text(f"{good}\n\n{bad}\n")
        with pytest.raises(ValueError, match=r"data\.jsonl line 3 is not JSON"):
            load_records(manifest)
    (tmp_path / "data.jsonl").write_text(f"{good}\n[1]\n")
    with pytest.raises(ValueError, match=r"line 2: a record must be a JSON object, not \[1\]"):
        load_records(manifest)
    (tmp_path / "data.jsonl").write_bytes(b'{"question": "\xff"}')
    with pytest.raises(ValueError, match=r"not UTF-8 \(byte 14\)"):
        load_records(manifest)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"question": "a"},\n {"question": }]', "is not JSON .*line 2 column 15"),
        ('{"question": "a"}', "must hold a JSON list"),
        ("[]", "holds no records"),
        ("", "holds no records"),
        ("[3]", "record 0: a record must be a JSON object"),
    ],
)
def test_a_faulty_json_file(tmp_path, text, words):
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        load_records(write_manifest(tmp_path, {"json_path": "data.json"}))


def test_an_id_stands_once_in_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"line 3: the id '1' is taken by .*data\.jsonl line 1"):
        build(tmp_path, [record(id=1), record(id=2), record(id="1")])
    manifest = write_manifest(tmp_path, *[{"json_path": f"{n}.jsonl"} for n in "ab"])
    write_jsonl(tmp_path / "a.jsonl", [record(id="x")])
    write_jsonl(tmp_path / "b.jsonl", [record(id="x")])
    with pytest.raises(ValueError, match=r"b\.jsonl line 1: the id 'x' is taken by .*a\.jsonl line 1"):
        build_dataset(manifest, TASKS)


@pytest.mark.parametrize(
    ("modality", "image", "fits"),
    [
        ("image", True, True),
        ("image", False, False),
        ("text", False, True),
        ("text", True, False),
        ("video", True, False),
    ],
)
def test_data_modality_is_kept(tmp_path, modality, image, fits):
    data = [record(image=picture(tmp_path) if image else ...)]
    if fits:
        assert len(build(tmp_path, data, data_modality=modality)) == 1
    else:
        with pytest.raises(ValueError, match=f"data_modality is '{modality}' but the record has"):
            build(tmp_path, data, data_modality=modality)


def test_all_problems_can_be_collected(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join([json.dumps(record()), "{", json.dumps(record(answer=...)), json.dumps(record())]))
    problems = []
    manifest = write_manifest(tmp_path, {"json_path": "data.jsonl", "sampling_strategy": "first:9"})
    records = load_records(manifest, on_problem=problems.append)
    assert len(records) == 2
    assert ["line 2 is not JSON" in problems[0], "asks for 9" in problems[1], "line 3" in problems[2]] == [True] * 3
