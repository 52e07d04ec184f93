"""Tables of a user's own: separators, columns by name, thoughts, ids that stay, splits that stay, and nothing left."""

import json

import pytest
from PIL import Image

TASK = ("--question_type", "ocr-vqa")


def written(folder, text, name="signs.csv", encoding="utf-8"):
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


@pytest.mark.parametrize(("name", "mark"), [("signs.csv", ","), ("signs.tsv", "\t")])
def test_a_text_table_becomes_records_with_pictures_and_thoughts(run, folder, name, mark):
    lines = [
        mark.join(("prompt", "label", "image", "thought", "source")),
        mark.join(('"What, and where?\nHere."', "stop", "images/a.jpg", "It says stop.", "street")),
        mark.join(("Which?", "go", '"[""images/a.jpg"", ""images/b.jpg""]"', "", "")),
        mark.join(("Nothing?", "", "images/a.jpg", "", "")),
        mark.join(("Too", "many", "cells", "are", "in", "this", "row")),
    ]
    source = written(folder, "\ufeff" + "\r\n".join(lines) + "\r\n", name)
    rows, report = run("table", None, "--columns", "question=prompt", "answer=label", *TASK, source=source)
    assert [row["question"] for row in rows] == ["What, and where?\nHere.", "Which?"]
    assert [len(row["images"]) for row in rows] == [1, 2]
    assert rows[0]["extra"] == {"thought": "It says stop.", "source": "street"} and rows[1]["extra"] == {}
    assert "line 5: there is no answer in the column 'label'" in report["refusals"][0]
    assert "line 6 has 7 cells, but there are 5 columns" in report["refusals"][1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "question,label\nq,a\n",
            "no column answer: its columns are question, label; name them, --columns answer=COLUMN",
        ),
        ("question;answer\nq;a\n", "has the single column 'question;answer': separate columns by ',', not by ';'"),
        ("question,question\nq,a\n", "has two columns 'question'"),
        ("question,answer,images,img\nq,a,x,y\n", "columns images and img: choose one, --columns image=images"),
        ("", "has no first line with the names of the columns"),
        ('question,answer\n"q,a\n', "close every quotation mark"),
    ],
)
def test_a_text_table_that_cannot_be_read_is_a_sentence(run, folder, content, words):
    assert words in " ".join(run("table", None, *TASK, source=written(folder, content), status=2).split())


def test_a_text_table_in_another_encoding_is_a_sentence(run, folder):
    source = written(folder, "question,answer\nWas heißt das?,ja\n", encoding="cp1252")
    assert "signs.csv is not UTF-8" in run("table", None, *TASK, source=source, status=2)


def test_json_lines_are_a_table_and_media_columns_have_their_usual_names(run, folder):
    lines = [{"q": "Which?", "a": "go", "picture": "images/a.jpg"}, {"q": "Why?", "a": "x"}, 7]
    rows, report = run("table", lines, "--columns", "question=q", "answer=a", *TASK, name="own.jsonl")
    assert [len(row["images"]) for row in rows] == [1, 0]
    assert "is of type int, not an object" in report["refusals"][0]


@pytest.mark.parametrize(
    ("thought", "answer", "kept"),
    [
        ("<think>It is red.</think>", "STOP", ("It is red.", "STOP")),
        ("", "<think>It is red.</think><answer>STOP</answer>", ("It is red.", "STOP")),
        ("", "It is red.</think>\nSTOP", ("It is red.", "STOP")),
        ("Mine.", "<think>It is red.</think> STOP", ("Mine.", "STOP")),
        ("", "<think> </think><answer>STOP</answer>", (None, "STOP")),
        ("a </think> b", "STOP", "the thought holds <think> or </think>"),
        ("", "<think>It is red. STOP", "is opened by <think>, but not closed"),
    ],
)
def test_thoughts_of_a_column_or_of_the_answer_become_the_records_thought(run, folder, thought, answer, kept):
    lines = [{"question": "Which?", "answer": answer} | ({"thought": thought} if thought else {})]
    whole = isinstance(kept, tuple)
    rows, report = run("table", lines, *TASK, name="own.jsonl", status=0 if whole else 1)
    if whole:
        assert (rows[0]["extra"].get("thought"), rows[0]["answer"]) == kept
    else:
        assert kept in report["refusals"][0]


def test_messages_with_roles_and_parts(run):
    ask = [
        {"type": "text", "text": "Is "},
        {"type": "image", "image": "images/a.jpg"},
        {"type": "text", "text": " red?"},
    ]
    reply = {"role": "assistant", "content": "<think>I look.</think><answer>yes</answer>"}
    image = {"type": "image_url", "image_url": {"url": "images/b.jpg"}}
    content = [
        {"messages": [{"role": "user", "content": "<image>Is it red?"}, reply], "images": ["images/a.jpg"]},
        {"messages": [{"role": "user", "content": ask}, reply]},
        {"messages": [{"role": "user", "content": [image, ask[2]]}, reply]},
        {"messages": [{"role": "user", "content": [{"type": "audio"}]}, reply]},
        {"messages": [{"role": "user", "content": ask}, reply], "image": "images/b.jpg"},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [image]}]},
        {"dialogue": []},
    ]
    rows, report = run("sharegpt", content, *TASK)
    assert [[path[-5:] for path in row["images"]] for row in rows] == [["a.jpg"], ["a.jpg"], ["b.jpg"]]
    assert [part["type"] for part in rows[1]["messages"][0]["content"]] == ["text", "image", "text"]
    assert {(row["answer"], row["extra"]["thought"]) for row in rows} == {("yes", "I look.")}
    for words, refusal in zip(
        ("part of a turn is {'type': 'audio'}", "different pictures", "reply holds a picture", "keys are dialogue"),
        report["refusals"],
        strict=True,
    ):
        assert words in refusal


def test_made_ids_and_the_split_follow_the_question_and_not_the_place(convert, folder, capsys):
    lines = [f"{name} is?,{name}" for name in map(str, range(60))]
    parts = []
    for number, rows in enumerate((lines, ["new?,x", *reversed(lines), "1 is?,other"])):
        source = written(folder, "\n".join(["question,answer", *rows]))
        out = folder / f"out{number}" / "own.jsonl"
        assert convert(["--format", "table", *TASK, "--split", "0.8", str(source), str(out)]) == 0
        assert {path.suffix for path in out.parent.iterdir()} == {".jsonl", ".yaml", ".json"}
        found = {
            part: {
                one["question"] + one["answer"]: one["id"]
                for one in map(json.loads, out.with_name(f"own_{part}.jsonl").read_text().splitlines())
            }
            for part in ("train", "test")
        }
        parts.append(found)
        assert f"own_test.yaml: {len(found['test'])} records" in capsys.readouterr().out
    first, second = parts
    assert 35 < len(first["train"]) < 60 and len(first["train"]) + len(first["test"]) == 60
    for part in ("train", "test"):
        assert all(second[part][asked] == made for asked, made in first[part].items() if not asked.startswith("1 is"))
    ids = [made for found in second.values() for made in found.values()]
    assert len(set(ids)) == len(ids) == 62


def test_a_split_with_an_empty_part_or_no_share_is_refused(run, folder, convert, capsys):
    source = written(folder, "question,answer\nq,a\n")
    assert "puts 1 records into train and 0 into test" in run(
        "table", None, *TASK, "--split", "0.999", source=source, status=2
    )
    with pytest.raises(SystemExit):
        convert(["--format", "table", *TASK, "--split", "90", str(source), str(folder / "o.jsonl")])
    assert "--split 90 must be above 0 and below 1" in capsys.readouterr().err


def test_pictures_on_both_sides_of_a_split_are_reported(convert, folder, capsys):
    rows = "\n".join(f"question {number}?,a,images/a.jpg" for number in range(20))
    source = written(folder, f"question,answer,image\n{rows}\n")
    assert convert(["--format", "table", *TASK, "--split", "0.5", str(source), str(folder / "o" / "own.jsonl")]) == 0
    assert "warning: 1 pictures or videos are in both parts" in capsys.readouterr().out


def test_files_may_follow_pairs_and_nothing_is_overwritten(convert, folder, capsys):
    source, out = written(folder, "q,a,kind\nWho?,Ann,x\nWhy?,so,y\n"), folder / "own.jsonl"
    command = ["--format", "table", *TASK, "--where", "kind=x"]
    command += ["--columns", "question=q", "answer=a", str(source), str(out)]
    assert convert(command) == 0 and len(out.read_text().splitlines()) == 1
    for kept in (".jsonl", ".yaml", ".report.json"):
        for other in {".jsonl", ".yaml", ".report.json"} - {kept}:
            out.with_suffix(other).unlink(missing_ok=True)
        with pytest.raises(SystemExit):
            convert(command)
        assert f"own{kept} exists: remove it, or name another OUT" in capsys.readouterr().err
        for other in (".jsonl", ".yaml", ".report.json"):
            out.with_suffix(other).write_text("")
    with pytest.raises(SystemExit):
        convert([word.replace("question=q", "qestion=q") for word in command])
    assert "--columns has no field 'qestion': its fields are question, answer" in capsys.readouterr().err


def test_absolute_paths_below_the_image_root_become_relative_and_others_stay(convert, folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "c.png"
    Image.new("RGB", (8, 8)).save(elsewhere)
    source = written(folder, f"question,answer,image\nq?,a,{folder}/images/a.jpg\nw?,a,{elsewhere}\n")
    out = folder / "records" / "own.jsonl"
    assert convert(["--format", "table", *TASK, str(source), str(out)]) == 0
    assert [json.loads(line)["image"] for line in out.read_text().splitlines()] == ["images/a.jpg", str(elsewhere)]


def test_embedded_pictures_and_their_records_can_be_moved_together(convert, folder):
    from pyarrow import Table, parquet

    cell = {"bytes": (folder / "images" / "a.jpg").read_bytes(), "path": None}
    rows = [{"question": f"{name}?", "answer": "a", "image": cell} for name in "xy"]
    parquet.write_table(Table.from_pylist(rows), folder / "own.parquet")
    out = folder / "records" / "own.jsonl"
    assert convert(["--format", "table", *TASK, str(folder / "own.parquet"), str(out)]) == 0
    images = {json.loads(line)["image"] for line in out.read_text().splitlines()}
    (image,) = images  # the picture that both rows show is written once
    assert not image.startswith(("/", "..")) and (out.parent / image).is_file()
    assert 'data_root: "."' in out.with_suffix(".yaml").read_text()


def test_a_conversion_that_keeps_nothing_or_fails_leaves_nothing(convert, folder, capsys):
    source = written(folder, "question,answer,image\nq?,a,images/none.jpg\nw?,a,images/nothing.jpg\n")
    before = {path for path in folder.rglob("*")}
    out = folder / "new" / "deeper" / "own.jsonl"
    assert convert(["--format", "table", *TASK, str(source), str(out)]) == 1
    said = capsys.readouterr().out
    assert "(and 1 like it: " in said and "nothing was kept, so nothing is written" in said
    assert convert(["--format", "table", *TASK, "--where", "answer=b", str(source), str(out)]) == 1
    assert "the first of them has answer=a; its keys are question, answer, image" in capsys.readouterr().out
    source.write_text('question,answer\nq?,a\n"open,a\n')
    assert convert(["--format", "table", *TASK, str(source), str(out)]) == 2
    assert {path for path in folder.rglob("*")} == before
