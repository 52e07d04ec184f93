"""Open-domain questions become records: each data set's own form, the repacked one, and rows that cannot be used."""

import json
import runpy
import sys

import pytest
from paths import ROOT

from dataset.dataset_grpo import build_dataset, read_row
from task.task_loader import load_tasks

FOLDER = str(ROOT / "scripts" / "data")


@pytest.fixture(scope="module")
def formats():
    sys.path.insert(0, FOLDER)
    try:
        from converters import FORMATS

        return FORMATS
    finally:
        sys.path.remove(FOLDER)


class Options:
    def __init__(self):
        self.problems = []

    def refuse(self, problem):
        self.problems.append(problem)


@pytest.fixture
def convert(formats, tmp_path):
    """(records, changes, problems) of a source of one format, given as text or as objects."""

    def call(form, content, name="source.jsonl"):
        source, options = tmp_path / name, Options()
        if not isinstance(content, str):
            lines = name.endswith(".jsonl")
            content = "\n".join(json.dumps(one) for one in content) if lines else json.dumps(content)
        source.write_text(content, encoding="utf-8")
        read, one = formats[form]
        records, changes = [], []
        for place, raw in read(source, options):
            try:
                for converted in one(raw, options):
                    records.append(converted.record)
                    changes += converted.changes
            except ValueError as error:
                options.refuse(f"{place}: {error}")
        return records, changes, options.problems

    return call


def test_nq(convert):
    lines = [
        {"question": "who sings it", "answer": ["A", "B ", "A"]},
        {"id": 3, "question": "q?", "golden_answers": ["x"]},
        {"question": "q?", "answers": "one"},
    ]
    records, _, problems = convert("nq", lines)
    assert records == [
        {"question": "who sings it", "question_type": "search_qa", "answer": ["A", "B"], "hops": 1},
        {"question": "q?", "question_type": "search_qa", "answer": ["x"], "id": "3", "hops": 1},
        {"question": "q?", "question_type": "search_qa", "answer": ["one"], "hops": 1},
    ]
    assert problems == []


HOTPOT = {
    "_id": "5a8b",
    "question": "Were Scott and Ed of the same nationality?",
    "answer": "yes",
    "type": "comparison",
    "level": "hard",
    "supporting_facts": [["Scott", 0], ["Ed", 1], ["Ed", 9], ["Gone", 0]],
    "context": [["Scott", ["Scott is American. ", "More."]], ["Ed", ["Ed made films.", " Ed was American."]]],
}


def test_hotpotqa(convert):
    records, changes, _ = convert("hotpotqa", [HOTPOT], name="dev.json")
    assert records == [
        {
            "id": "5a8b",
            "question": HOTPOT["question"],
            "question_type": "search_qa",
            "answer": ["yes"],
            "hops": 2,
            "supporting_titles": ["Scott", "Ed", "Gone"],
            "supporting_facts": ["Scott is American.", "Ed was American."],
            "type": "comparison",
            "level": "hard",
        }
    ]
    assert changes == ["supporting fact that the context lacks left out"] * 2


def test_hotpotqa_by_columns_and_repacked(convert):
    facts = {"title": ["Scott", "Ed"], "sent_id": [0, 1]}
    context = {"title": ["Scott", "Ed"], "sentences": [one[1] for one in HOTPOT["context"]]}
    by_columns = HOTPOT | {"supporting_facts": facts, "context": context}
    metadata = {"type": "bridge", "supporting_facts": facts, "context": context}
    repacked = {"id": "train_0", "question": "q?", "golden_answers": ["a", "b"], "metadata": metadata}
    bare = {"id": "train_1", "question": "q?", "golden_answers": ["a"]}
    records, changes, problems = convert("hotpotqa", [by_columns, repacked, bare])
    assert [one["supporting_facts"] for one in records[:2]] == [["Scott is American.", "Ed was American."]] * 2
    assert records[1]["answer"] == ["a", "b"] and records[1]["type"] == "bridge"
    assert "supporting_facts" not in records[2] and changes == [] == problems


def test_2wikimultihopqa(convert):
    record = {
        "_id": "8813",
        "type": "compositional",
        "question": "Who is the mother of the director?",
        "context": [["Film", ["It is by X."]], ["X", ["X is a son.", "His mother is Y."]]],
        "supporting_facts": [["Film", 0], ["X", 1]],
        "evidences": [["Film", "director", "X"], ["X", "mother", "Y"]],
        "answer": "Y",
    }
    no_evidence = record | {"_id": "1", "type": "bridge_comparison", "evidences": []}
    unknown = record | {"_id": "2", "type": "new", "evidences": None}
    records, _, problems = convert("2wikimultihopqa", [record, no_evidence, unknown], name="train.json")
    assert [one.get("hops") for one in records] == [2, 4, None] and problems == []
    assert records[0]["supporting_titles"] == ["Film", "X"]
    assert records[0]["supporting_facts"] == ["It is by X.", "His mother is Y."]


def test_musique(convert):
    record = {
        "id": "3hop1__1_2_3",
        "paragraphs": [
            {"idx": 0, "title": "A", "paragraph_text": "About A.", "is_supporting": True},
            {"idx": 1, "title": "B", "paragraph_text": "About B.", "is_supporting": False},
        ],
        "question": "q?",
        "question_decomposition": [{"id": 1}, {"id": 2}, {"id": 3}],
        "answer": "USA",
        "answer_aliases": ["United States", "USA"],
        "answerable": True,
    }
    no_steps = {"id": "4hop2__1", "question": "q?", "golden_answers": ["x"]}
    lines = [record, no_steps, no_steps | {"id": "7"}, record | {"answerable": False}]
    records, _, problems = convert("musique", lines)
    assert records[0]["answer"] == ["USA", "United States"] and records[0]["hops"] == 3
    assert records[0]["supporting_titles"] == ["A"] and records[0]["supporting_facts"] == ["About A."]
    assert [one.get("hops") for one in records[1:]] == [4, None]
    assert len(problems) == 1 and "answerable is false" in problems[0]


def test_bamboogle(convert):
    table = (
        '\ufeffQuestion,Answer\n"Who was president, when it began?",James Madison\n\n"Two ""quoted""?",1936\nnone,\n'
    )
    records, _, problems = convert("bamboogle", table, name="bamboogle.csv")
    assert [one["answer"] for one in records] == [["James Madison"], ["1936"]]
    assert records[0] == {
        "question": "Who was president, when it began?",
        "question_type": "search_qa",
        "answer": ["James Madison"],
        "hops": 2,
    }
    assert len(problems) == 1 and "line 5: there is no answer" in problems[0]
    with pytest.raises(ValueError, match="no column Question"):
        convert("bamboogle", "a,b\n1,2\n", name="other.csv")


def test_a_table(convert, formats, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"id": ["t0"], "question": ["q?"], "golden_answers": [["a", "b"]], "data_source": ["nq"]})
    parquet.write_table(table, tmp_path / "train.parquet")
    read, one = formats["nq"]
    ((place, raw),) = read(tmp_path / "train.parquet", Options())
    assert place.endswith("row 0") and one(raw, None)[0].record["answer"] == ["a", "b"]


@pytest.mark.parametrize("form", ["nq", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"])
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (7, "of type int"),
        ([], "of type list"),
        ({"question": "q?"}, "there is no answer"),
        ({"question": "q?", "answer": []}, "there is no answer"),
        ({"question": "q?", "answer": " "}, "there is no answer"),
        ({"question": "q?", "answer": [7]}, "not a text or a list of texts"),
        ({"question": "q?", "answer": {"text": "x"}}, "not a text or a list of texts"),
        ({"question": "", "answer": "x"}, "question"),
        ({"answer": "x"}, "question"),
    ],
)
def test_rows_that_cannot_be_used(convert, form, raw, reason):
    records, _, problems = convert(form, [raw, {"question": "q?", "answer": "x"}])
    assert len(records) == 1 and len(problems) == 1
    assert reason in problems[0]


def test_the_script_writes_records_that_load(tmp_path):
    odd = [
        {"supporting_facts": [7]},
        {"supporting_facts": [["A"]]},
        {"context": "text"},
        {"context": [["Scott", None]]},
    ]
    source, out = tmp_path / "dev.json", tmp_path / "records.jsonl"
    source.write_text(json.dumps([HOTPOT, *[HOTPOT | one for one in odd], 7]), encoding="utf-8")
    main = runpy.run_path(f"{FOLDER}/convert.py")["main"]
    assert main(["--format", "hotpotqa", str(source), str(out)]) == 0
    report = json.loads(out.with_suffix(".report.json").read_text())
    assert (report["kept"], report["refused"]) == (1, 5)
    assert all(f"record {number}" in one for number, one in enumerate(report["refusals"], start=1))
    (row,) = [read_row(row) for row in build_dataset(out.with_suffix(".yaml"), load_tasks())]
    assert row["answer"] == ["yes"] and row["extra"]["hops"] == 2
    assert row["extra"]["supporting_titles"] == ["Scott", "Ed", "Gone"]
