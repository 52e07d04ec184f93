"""scripts/data/convert.py: every format becomes records that load, and every record that cannot is said, with why."""

import io
import json
import random

import pytest
from convert_cases import HUMANEVAL, MBPP, META, POINTS, robot, turns
from PIL import Image
from task_cases import said, scored

from dataset.dataset_grpo import load_media

BOX = {"x": 352.874, "y": 186.479, "width": 19.296, "height": 14.472}


def test_sharerobot_trajectories(run):
    bad = [robot(id=9), robot(id="a.jpg", points=POINTS[:1]), robot(id="b.jpg"), robot(id="images/a.jpg", points=None)]
    scale = robot(id="images/a.jpg", points=[[0.4, 0.2], [900, 0.3]])
    good = [robot(), robot(id="images/a.jpg", instruction="Stop!")]
    rows, report = run("sharerobot-trajectory", [*good, *bad, robot(id="images/b.jpg"), scale, 7])
    assert [row["question"] for row in rows] == ["Reach for the carrot.", "Stop!"]
    assert rows[0]["answer"] == POINTS and rows[0]["extra"]["meta_data"] == META
    assert rows[0]["images"][0].endswith("images/456.jpg")
    assert report["changed"] == 1 and report["changes"] == {"picture found by the id": 1} and report["refused"] == 7
    why = " | ".join(report["refusals"])
    for reason in (
        "has no 9.jpg or .png",
        "does not exist",
        "there is no points",
        "the picture is (320, 240), but its data says (640, 480)",
        "outside the picture of 640x480 pixels",
        "of type int, not an object",
    ):
        assert reason in why, why


def test_sharerobot_affordances(run):
    record = robot(affordance=BOX)
    del record["points"]
    wrong = [robot(id="images/a.jpg", affordance=[1, 2, 3, 4]), robot(id="images/a.jpg", affordance=BOX | {"width": 0})]
    rows, report = run("sharerobot-affordance", [record, *wrong])
    assert len(rows) == 1 and report["refused"] == 2 and "has no area" in report["refusals"][1]
    right = said([355.08, 184.925, 374.496, 199.276])  # the same box in the processed picture of 644x476
    assert scored("affordance-sharerobot", right, rows[0]["answer"])[1] == pytest.approx(1.0, abs=1e-3)


def coco(**changes):
    return {
        "images": [
            {"id": 1, "file_name": "a.jpg", "width": 640, "height": 480},
            {"id": 2, "file_name": "b.jpg", "width": 320, "height": 240},
        ],
        "annotations": [
            {"id": 7, "image_id": 1, "category_id": 3, "bbox": [10, 20, 30, 40], "iscrowd": 0},
            {"id": 8, "image_id": 1, "category_id": 4, "bbox": [1.5, 2, 300, 200]},
            {"id": 9, "image_id": 1, "category_id": 3, "bbox": [0, 0, 640, 480], "iscrowd": 1},
            {"id": 10, "image_id": 1, "category_id": 3, "bbox": [5, 5, 0, 4]},
        ],
        "categories": [{"id": 3, "name": "cup"}, {"id": 4, "name": "table"}],
    } | changes


def test_coco_keeps_empty_pictures(run, folder):
    rows, report = run("coco", coco(), "--image_root", str(folder / "images"))
    assert rows[0]["answer"] == [
        {"bbox_2d": [10, 20, 40, 60], "label": "cup"},
        {"bbox_2d": [1.5, 2, 301.5, 202], "label": "table"},
    ]
    assert rows[1]["answer"] == [] and rows[0]["question"] == "Find every object of these kinds: cup, table."
    assert report["changes"] == {"region of a crowd left out": 1, "box without area left out": 1}
    assert report["changed"] == 1


@pytest.mark.parametrize(
    ("region", "reason"),
    [
        ({"category_id": 3, "bbox": [0, 0, 99, 99], "iscrowd": 1}, "region of a crowd left out"),
        ({"category_id": 3, "bbox": [5, 5, 0, 4]}, "box without area left out"),
    ],
)
def test_coco_a_picture_of_regions_that_are_left_out_does_not_show_nothing(run, folder, region, reason):
    content = coco()
    content["annotations"] += [{"id": 20 + number, "image_id": 2} | region for number in range(2)]
    rows, report = run("coco", content, "--image_root", str(folder / "images"))
    assert [row["id"] for row in rows] == ["1"] and (report["kept"], report["refused"]) == (1, 1)
    assert report["refusals"][0].endswith(f"{reason}: the answer would say that the picture shows nothing")


@pytest.mark.parametrize("answer", [[10, 20, 40, 60], [{"bbox_2d": [10, 20, 40, 60], "label": "cup"}]])
def test_answers_in_json_text_become_numbers(run, folder, answer):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    row = {"q": "Find the cup.", "a": json.dumps(answer), "picture": "images/a.jpg"}
    parquet.write_table(pyarrow.Table.from_pylist([row]), folder / "data.parquet")
    columns = ["--columns", "question=q", "answer=a", "image=picture", "--question_type", "object-detection"]
    rows, report = run("table", None, *columns, source=folder / "data.parquet")
    assert rows[0]["answer"] == answer and report["changes"]["answer read as JSON"] == 1


def test_coco_annotations_of_pictures_that_are_not_there(run, folder):
    """They would make their pictures seem empty."""
    content = coco()
    content["annotations"].append({"id": 50, "image_id": 77, "category_id": 1, "bbox": [1, 2, 3, 4]})
    rows, report = run("coco", content, "--image_root", str(folder / "images"))
    assert len(rows) == 2 and report["refusals"][0].endswith(
        "1 of 2 image_id in annotations are no picture's id, first 77"
    )
    content["annotations"] = [one | {"image_id": str(one["image_id"])} for one in content["annotations"]]
    assert "give annotations and pictures the same ids" in run("coco", content, status=2)


def test_refcoco_gives_a_record_a_sentence(run, folder):
    refs = [{"ann_id": 7, "image_id": 1, "sentences": [{"sent": "the cup"}, "Left one"]}, {"ann_id": 99, "image_id": 1}]
    rows, report = run("refcoco", coco(refs=refs), "--image_root", str(folder / "images"))
    assert [(row["question"], row["answer"]) for row in rows] == [
        ("Find the cup.", [10, 20, 40, 60]),
        ("Find left one.", [10, 20, 40, 60]),
    ]
    assert report["refused"] == 1 and "there is no annotation" in report["refusals"][0]


def test_refcoco_with_captions(run, folder):
    content = coco()
    content["images"][0]["caption"] = "cup near the edge"
    content["annotations"] = content["annotations"][:1]
    rows, _ = run("refcoco", content, "--image_root", str(folder / "images"))
    assert rows[0]["question"] == "Find cup near the edge."


def test_llava_conversations(run):
    content = [
        turns("<image>\nWhat is written here?", "STOP", id="x", image="images/a.jpg"),
        turns("And here?", "go", "Why?", "Because.", image="images/a.jpg"),
        turns("What is 2+2?", "4", id="x"),
        turns("<image><image> Which?", "one", image="images/a.jpg"),
        turns("Hello?"),
        {"image": "images/a.jpg"},
    ]
    rows, report = run("llava", content, "--question_type", "ocr-vqa")
    assert [row["answer"] for row in rows] == ["STOP", "go", "4"]
    assert rows[0]["messages"][0]["content"][0] == {"type": "image", "index": 0} and rows[2]["images"] == []
    assert report["changes"] == {"later turns left out": 1, "duplicate id replaced": 1}
    assert "2 slot(s) <image> but the record has 1" in report["refusals"][0]
    assert "no question with a reply" in report["refusals"][1]


@pytest.mark.parametrize(
    ("scale", "written", "answer"),
    [
        ("pixels", "[10, 20, 40, 60]", [10, 20, 40, 60]),
        ("norm1000", "[[500, 500, 750, 750]]", [320, 240, 480, 360]),
        ("fraction", '{"bbox_2d": [0.5, 0.5, 0.75, 0.75]}', [320, 240, 480, 360]),
    ],
)
def test_vlm_r1_boxes_on_the_scale_that_is_named(run, scale, written, answer):
    tagged = turns("<image>Find the cup.", f"<think> </think><answer>{written}</answer>", image="images/a.jpg")
    flat = {"problem": "Find the cup.", "solution": written, "image": "images/a.jpg"}
    flags = ("--question_type", "object-detection", "--coordinates", scale)
    rows, report = run("vlm-r1", [tagged, flat, flat | {"solution": "no box"}], *flags, name="source.jsonl")
    boxes = [one["bbox_2d"] if isinstance(one, dict) else one for row in rows for one in row["answer"]]
    assert boxes == [answer, answer]
    assert report["changes"]["answer tags removed"] == 1
    assert report["changes"].get("coordinates converted to pixels", 0) == (0 if scale == "pixels" else 2)
    assert "no boxes or points can be read in the reply 'no box'" in report["refusals"][0]


def test_boxes_on_another_scale_than_named_are_refused(run):
    record = turns("<image>Find it.", "[500, 500, 750, 750]", image="images/a.jpg")
    _, report = run("vlm-r1", [record], "--question_type", "object-detection", status=1, name="source.jsonl")
    assert report["kept"] == 0 and "is the scale right?" in report["refusals"][0]


def test_textvqa(run, folder):
    answers = ["nokia"] * 9 + ["Nokia"]
    record = {"question_id": 5, "question": "What brand?", "image_id": "a", "answers": answers}
    content = {"dataset_type": "train", "data": [record, record | {"question_id": 6, "answers": []}]}
    rows, report = run("textvqa", content, "--image_root", str(folder / "images"))
    assert rows[0]["answer"] == ["nokia", "Nokia"] and rows[0]["id"] == "textvqa-5"
    assert report["changes"] == {"equal references counted once": 1} and "there is no answer" in report["refusals"][0]


def test_ocrvqa_by_split(run, folder):
    book = {
        "imageURL": "http://x/a.jpg",
        "questions": ["Who wrote this?", "Genre?"],
        "answers": ["Ann", "Art"],
        "split": 1,
    }
    content = {"a": book, "b": book | {"split": 3}, "c": book | {"answers": ["Ann"]}, "d": 3}
    flags = ("--where", "split=1", "--image_root", str(folder / "images"))
    rows, report = run("ocr-vqa", content, *flags)
    assert [(row["id"], row["answer"]) for row in rows] == [("a-0", "Ann"), ("a-1", "Art")]
    assert report["skipped"] == 2 and "2 questions have 1 answers" in report["refusals"][0]


def test_gsm8k(run):
    content = [
        {"question": "How many?", "answer": "1000 + 200 = 1200\n#### 1,200"},
        {"question": "How many?", "answer": "no result"},
        {"question": " ", "answer": "#### 3"},
    ]
    rows, report = run("gsm8k", content, name="source.jsonl")
    assert [row["answer"] for row in rows] == ["1200"] and rows[0]["question_type"] == "math-reasoning"
    assert report["changes"] == {"thousands separators removed": 1} and report["refused"] == 2


def test_math_from_a_folder_of_problems(run, folder):
    problems = folder / "MATH" / "algebra"
    problems.mkdir(parents=True)
    one = {"problem": "What is $1/3$?", "level": "Level 1", "type": "Algebra"}
    (problems / "1.json").write_text(json.dumps(one | {"solution": "So $\\boxed{\\frac{1}{3}}$."}))
    (problems / "2.json").write_text(json.dumps(one | {"solution": "So $\\boxed{1}$ or $\\boxed{2}$."}))
    (problems / "3.json").write_text(json.dumps(one | {"solution": "It is 3.", "answer": "3"}))
    rows, report = run("math", None, source=folder / "MATH")
    assert [row["answer"] for row in rows] == ["\\frac{1}{3}", "3"] and rows[0]["extra"]["level"] == "Level 1"
    assert "no single \\boxed{}" in report["refusals"][0]


def test_programs(run):
    tests = ["assert sq(3) == 9", "assert sq(-2) == 4"]
    rows, report = run("mbpp", [MBPP | {"test_list": tests}, MBPP | {"task_id": 3}], name="source.jsonl")
    assert rows[0]["answer"] == {"tests": tests} and "assert sq(3) == 9" in rows[0]["question"]
    assert report["refused"] == 1
    assert scored("code-generation", said(MBPP["code"]), rows[0]["answer"])[:2] == (1.0, 1.0)


def test_humaneval_runs_its_own_check(run):
    rows, _ = run("humaneval", [HUMANEVAL], name="source.jsonl")
    right, wrong = HUMANEVAL["prompt"] + HUMANEVAL["canonical_solution"], HUMANEVAL["prompt"] + "    return 1\n"
    assert scored("code-generation", said(right), rows[0]["answer"])[1] == 1.0
    assert scored("code-generation", said(wrong), rows[0]["answer"])[1] == 0.0


def picture_bytes(size=(64, 48)):
    buffer = io.BytesIO()
    Image.new("RGB", size, (10, 200, 30)).save(buffer, "PNG")
    return buffer.getvalue()


COLUMNS = ("--columns", "question=problem", "answer=gold", "image=images", "--question_type", "ocr-vqa")


def test_a_parquet_table_with_pictures_inside(run, folder):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    cells = [{"bytes": picture_bytes(), "path": None}], [{"bytes": b"no picture", "path": None}]
    table = {"problem": ["What?", "What?", None], "gold": ["a", "b", "c"], "images": [*cells, []]}
    parquet.write_table(pyarrow.table(table), folder / "data.parquet")
    rows, report = run("table", None, *COLUMNS, source=folder / "data.parquet")
    assert [row["answer"] for row in rows] == ["a"] and rows[0]["images"][0].endswith(".png")
    assert report["changes"] == {"picture written to a file": 1}
    assert (
        "cannot be read as a picture" in report["refusals"][0]
        and "there is no question in the column 'problem'" in report["refusals"][1]
    )


def test_a_data_set_saved_to_disk(run, folder):
    datasets = pytest.importorskip("datasets")
    path = str(folder / "images" / "a.jpg")
    data = datasets.Dataset.from_dict({"problem": ["What?"] * 2, "gold": ["a", "b"], "images": [path] * 2})
    data.cast_column("images", datasets.Image()).save_to_disk(folder / "saved")
    rows, _ = run("table", None, *COLUMNS, source=folder / "saved")
    assert [row["answer"] for row in rows] == ["a", "b"]
    assert load_media(rows[0])[0][0].size == (640, 480)


def test_easy_vqa_tells_what_a_question_asks_and_what_its_picture_shows(run, folder):
    content = [
        ["what color is the shape?", "red", 0],
        ["is there not a circle in the image?", "no", 0],
        ["is a blue shape present?", "no", 0],
        ["what shape is present?", "triangle", 1],
    ]
    for picture in (0, 1):
        (folder / "images" / f"{picture}.png").write_bytes((folder / "images" / "a.jpg").read_bytes())
    rows, _ = run("easy-vqa", content, "--image_root", str(folder))
    assert [row["extra"]["kind"] for row in rows] == ["colour", "absent", "present", "shape"]
    assert [row["extra"].get("thought") for row in rows] == [*["A red circle."] * 3, None]
    assert rows[3]["answer"] == "triangle" and rows[3]["images"][0].endswith("images/1.png")
    assert "[question, answer, picture number]" in run("easy-vqa", [{"a": 1}], status=2)


ODD = [None, True, 7, -1.5, "", "x", [], [1], {}, {"a": 1}, 10**400, "\ud800", [[1, 2], None], "../a.jpg"]
SOURCES = {
    "sharerobot-trajectory": [robot(id="images/a.jpg")],
    "sharerobot-affordance": [robot(id="images/a.jpg", affordance=BOX)],
    "coco": coco(),
    "refcoco": coco(refs=[{"ann_id": 7, "image_id": 1, "sentences": [{"sent": "the cup"}]}]),
    "vlm-r1": [turns("<image>Find it.", "[1, 2, 30, 40]", image="images/a.jpg")],
    "textvqa": {"data": [{"question_id": 5, "question": "?", "image_id": "images/a", "answers": ["a"]}]},
    "ocr-vqa": {"images/a": {"imageURL": "a.jpg", "questions": ["Who?"], "answers": ["Ann"], "split": 1}},
    "easy-vqa": [["what shape is present?", "circle", 0]],
    "gsm8k": [{"question": "?", "answer": "#### 1"}],
    "math": [{"problem": "?", "solution": "\\boxed{1}"}],
    "mbpp": [MBPP | {"test_list": ["assert True"], "test_imports": ["import math"]}],
    "humaneval": [HUMANEVAL],
}


@pytest.mark.parametrize("form", SOURCES)
def test_odd_values_anywhere_are_refused_and_never_a_traceback(convert, folder, form, capsys):
    draw, statuses = random.Random(form), set()
    flags = ["--question_type", "object-detection"] if form == "vlm-r1" else []
    for number in range(12):
        content = json.loads(json.dumps(SOURCES[form]))
        for _ in range(draw.randint(0, 2)):
            content = replaced(content, draw)
        source, out = folder / "s.json", folder / f"{number}.jsonl"
        source.write_text(json.dumps(content))
        statuses.add(convert(["--format", form, str(source), str(out), "--image_root", str(folder), *flags]))
        capsys.readouterr()
    assert len(statuses) > 1


def replaced(value, draw):
    """The value with one part of it, or all of it, made odd."""
    if isinstance(value, dict | list) and value and draw.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = draw.choice(list(keys))
        value[key] = replaced(value[key], draw)
        return value
    return draw.choice(ODD)


def test_a_wrong_command_is_a_sentence(run, folder, convert, capsys):
    assert "no column 'answr': its columns are a" in run_table(run, folder, "answer=answr")
    for flags in (["--format", "llava"], ["--format", "gsm8k", "--question_type", "math-reasoning"], ["--where", "x"]):
        (folder / "s.json").write_text("[]")
        with pytest.raises(SystemExit) as stop:
            convert(
                [*(["--format", "gsm8k"] if "--format" not in flags else []), str(folder / "s.json"), "o.jsonl", *flags]
            )
        assert stop.value.code == 2
    assert "no task has question_type 'ocr-vqas' (did you mean 'ocr-vqa'?)" in run(
        "llava", [], "--question_type", "ocr-vqas", status=2
    )
    assert "it is not an annotation file" in run("coco", [1], status=2)


def run_table(run, folder, answer):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": [1]}), folder / "t.parquet")
    flags = ("--columns", "question=a", answer, "--question_type", "ocr-vqa")
    return run("table", None, *flags, source=folder / "t.parquet", status=2)


@pytest.mark.parametrize("answers", ["yes", ["yes", None], [], [" "], [5]])
def test_textvqa_answers_are_texts(run, folder, answers):
    """Neither the letters of one text nor the word None are answers."""
    raw = {"question": "q", "question_id": 1, "image_id": "images/a", "answers": answers}
    if answers == "yes":
        assert run("textvqa", {"data": [raw]})[0][0]["answer"] == ["yes"]
    else:
        assert "answer" in run("textvqa", {"data": [raw]}, status=1)[1]["refusals"][0]


def test_ocr_vqa_takes_no_text_apart(run, folder):
    _, report = run("ocr-vqa", {"images/a": {"questions": "Who?", "answers": "Nobo"}}, status=1)
    assert "questions and answers must be lists" in report["refusals"][0]


def test_a_table_without_an_answer_or_that_is_not_whole(run, folder):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = folder / "t.parquet"
    flags = ("--columns", "question=q", "answer=a", "--question_type", "ocr-vqa")
    parquet.write_table(pyarrow.table({"q": ["x", "y"], "a": [None, "z"]}), path)
    rows, report = run("table", None, *flags, source=path)
    assert len(rows) == 1 and "row 0: there is no answer in the column 'a'" in report["refusals"][0]
    path.write_bytes(path.read_bytes()[:40])
    assert "t.parquet is not a complete parquet file" in run("table", None, *flags, source=path, status=2)
