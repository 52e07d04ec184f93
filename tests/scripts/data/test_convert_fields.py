"""Conversion: turns, other names of media, tags round an answer, and fields that a format does not know."""

import json

import pytest
from convert_cases import HUMANEVAL, MBPP, robot, turns
from task_cases import said, scored


def test_pictures_under_another_name_are_the_records_own(run):
    content = [
        turns("What is written here?", "STOP", images=["images/a.jpg"]),
        turns("And here?", "go", Image_Path="images/b.jpg", video=None),
        turns("And here?", "go", image="images/a.jpg", images=["images/a.jpg", "images/b.jpg"]),
        turns("And here?", "go", images=[]),
    ]
    rows, report = run("llava", content, "--question_type", "ocr-vqa")
    assert [[path.rpartition("/")[2] for path in row["images"]] for row in rows] == [["a.jpg"], ["b.jpg"], []]
    assert report["changes"] == {"key images named image": 1, "key Image_Path named image": 1}
    assert "image and images name different media" in report["refusals"][0]


def said_by(*roles, **turn):
    return {"conversations": [{"from": role, "value": f"{role} {n}"} | turn for n, role in enumerate(roles)]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (said_by("gpt", "human"), "turn 1 is by 'gpt' where a human one is needed"),
        (said_by("human", "human", "gpt"), "turn 2 is by 'human' where a reply is needed"),
        (said_by("human", "gpt", "gpt"), "turn 3 is by 'gpt'"),
        (said_by("human", "function_call", "observation", "gpt"), "turn 2 is by 'function_call'"),
        (said_by("human", "tool", "gpt"), "turn 2 is by 'tool'"),
        (said_by("human", "gpt", tool_calls=[{"name": "search"}]), "turn 1 calls a tool"),
        (said_by("system", "human", "gpt"), "put its text into the task's system_prompt"),
        (said_by(None, None), "turn 1 is by None"),
        ({"conversations": ["Who?", "Ann"]}, "not a list of turns"),
    ],
)
def test_turns_that_cannot_be_converted_are_refused_by_reason(run, content, reason):
    rows, report = run("llava", [content, said_by("user", "assistant")], "--question_type", "ocr-vqa")
    assert [(row["question"], row["answer"]) for row in rows] == [("user 0", "assistant 1")]
    assert report["refused"] == 1 and reason in report["refusals"][0]


def test_an_empty_system_turn_says_nothing(run):
    content = said_by("system", "human", "gpt")
    content["conversations"][0]["value"] = ""
    rows, _ = run("llava", [content], "--question_type", "ocr-vqa")
    assert rows[0]["question"] == "human 1"


FLAT = {"problem": "Which?", "solution": "<answer>D</answer>", "path": "part/1", "options": ["A", "D"], "url": None}


def test_unknown_keys_are_carried_over_and_counted(run):
    content = [FLAT, turns("Which?", "D", path="x", question_type="other"), FLAT | {"solution": None}]
    rows, report = run("vlm-r1", content, "--question_type", "ocr-vqa", name="source.jsonl")
    assert [row["extra"] for row in rows] == [{"path": "part/1", "options": ["A", "D"]}, {"path": "x"}]
    assert report["carried_over"] == {"path": 2, "options": 1}
    assert report["changes"] == {"answer tags removed": 1, "the source's own question_type left out": 1}


@pytest.mark.parametrize(
    ("form", "raw", "carried"),
    [
        ("gsm8k", {"question": "?", "answer": "#### 1"}, {}),
        ("math", {"problem": "?", "solution": "\\boxed{1}", "level": "Level 1"}, {"level": "Level 1"}),
        ("mbpp", MBPP | {"test_list": ["assert True"]}, {"code": MBPP["code"]}),
        ("humaneval", HUMANEVAL, {"canonical_solution": HUMANEVAL["canonical_solution"]}),
        ("sharerobot-trajectory", robot(), {}),
        ("textvqa", {"question_id": 5, "question": "?", "image_id": "images/a", "answers": ["a"]}, {}),
        ("nq", {"id": "q1", "question": "who?", "answer": ["Ann"]}, {}),
        ("hotpotqa", {"_id": "q1", "question": "who?", "answer": "Ann", "type": "bridge", "context": []}, {}),
    ],
)
def test_every_format_carries_over_what_it_does_not_know(run, form, raw, carried):
    rows, report = run(form, [raw | {"note": "n"}])
    assert rows[0]["extra"].items() >= (carried | {"note": "n"}).items()
    assert report["carried_over"] == dict.fromkeys([*carried, "note"], 1)


def test_a_table_gives_the_answer_without_its_tags_and_its_other_columns(run, folder):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {
        "problem": ["Which?", "Which?", "Who?"],
        "gold": ["<answer>D</answer>", "<answer>D</answer> or <answer>A</answer>", "Ann"],
        "options": [["A", "D"], ["A", "D"], None],
        "raw": [b"x", b"x", b"x"],
    }
    parquet.write_table(pyarrow.table(table), folder / "data.parquet")
    flags = ("--columns", "question=problem", "answer=gold", "--question_type", "ocr-vqa")
    rows, report = run("table", None, *flags, source=folder / "data.parquet")
    assert [row["answer"] for row in rows] == ["D", "Ann"] and rows[0]["extra"] == {"options": ["A", "D"]}
    assert report["changes"] == {"answer tags removed": 1, "raw left out, which is not JSON": 2}
    assert report["carried_over"] == {"options": 1} and "not one block of <answer>" in report["refusals"][0]
    assert scored("ocr-vqa", said("D"), rows[0]["answer"])[1] == 1.0


def test_the_report_adds_up(run, folder):
    lines = [turns("Who?", "Ann", split="a"), 7, turns("Who?"), turns("Who?", "Ann", split="b")]
    source = folder / "source.jsonl"
    source.write_text("\n".join([*map(json.dumps, lines), "{broken"]))
    _, report = run("llava", None, "--question_type", "ocr-vqa", "--where", "split=a", source=source)
    numbers = {name: report[name] for name in ("records", "kept", "skipped", "refused")}
    assert numbers == {"records": 5, "kept": 1, "skipped": 3, "refused": 1}
