"""Searching: BM25 over a local corpus, passages as text, and the retriever that a setting names."""

import os
import sys
import threading

import pytest
from corpus_cases import DOCUMENTS, write_corpus

pytest.importorskip("bm25s")
from task.retrieval.bm25 import BM25Retriever
from task.retrieval.passages import Passage, RetrievalError, format_passages
from task.retrieval.search import make_retriever


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.jsonl")


def ids(retriever, query, top_k=3):
    return [passage.id for passage in retriever.search([query], top_k)[0]]


def test_finds_what_shares_words_best_first(corpus):
    retriever = BM25Retriever(corpus)
    assert ids(retriever, "the long river in FRANCE?")[0] == "seine"
    assert ids(retriever, "Dead Sea") == ["jordan"]
    assert ids(retriever, "NAÏVE Übergroß") == ["4"]
    found = retriever.search(["river", "Seine", "river"], 10)
    assert found[0] == found[2] and {one.id for one in found[0]} == {"seine", "jordan"}
    assert all(first.score >= second.score > 0 for first, second in zip(found[0], found[0][1:], strict=False))
    assert found[1][0].text.startswith(("The Seine", "Paris is"))


@pytest.mark.parametrize("query", ["", "  ", "the of", "zzzz", "\x00", "?!", "\ud800"])
def test_nothing_fits(corpus, query):
    assert BM25Retriever(corpus).search([query], 3) == [[]]


def test_no_query_no_answer(corpus):
    assert BM25Retriever(corpus).search([], 3) == []


@pytest.mark.parametrize(("queries", "top_k"), [("Paris", 3), ([None], 3), (["Paris"], 0), (["Paris"], True)])
def test_what_cannot_be_looked_for(corpus, queries, top_k):
    with pytest.raises(ValueError, match=r"^(queries|top_k) is "):
        BM25Retriever(corpus).search(queries, top_k)


def test_equal_scores_come_in_the_order_of_the_corpus(tmp_path):
    same = [{"id": str(number), "title": "", "text": "a cat sat"} for number in range(50)]
    assert ids(BM25Retriever(write_corpus(tmp_path / "c.jsonl", same)), "cat", 50) == [str(n) for n in range(50)]


def test_the_index_is_kept_until_the_corpus_changes(corpus):
    BM25Retriever(corpus)
    made = corpus.with_suffix(".bm25") / "made_of.json"
    before = made.stat().st_mtime_ns
    old = BM25Retriever(corpus.parent)  # the folder names the same corpus
    assert made.stat().st_mtime_ns == before
    write_corpus(corpus, [*DOCUMENTS, {"id": "rhine", "title": "Rhine", "text": "A river that ends in Rotterdam."}])
    assert ids(BM25Retriever(corpus), "Rotterdam") == ["rhine"]
    assert ids(old, "Dead Sea") == ["jordan"]  # it keeps what it has mapped


def test_a_damaged_index_is_made_again(corpus):
    BM25Retriever(corpus)
    (corpus.with_suffix(".bm25") / "made_of.json").write_text("{", encoding="utf-8")
    assert ids(BM25Retriever(corpus), "Dead Sea") == ["jordan"]


def test_several_threads_make_one_index_and_search_it(corpus):
    found = []
    threads = [threading.Thread(target=lambda: found.append(ids(BM25Retriever(corpus), "Dead Sea"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [["jordan"]] * 4
    assert sorted(path.name for path in corpus.parent.iterdir()) == ["corpus.bm25", "corpus.bm25.lock", "corpus.jsonl"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("not json", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ("7", "line 2: of type int, not an object"),
        ('{"id": "a", "text": ""}', "line 2: text is '', not a text"),
        ('{"id": "a", "title": null, "text": "x"}', "line 2: title is None, not a text"),
        ('{"text": "x"}', "line 2: id is None, not a text"),
        ('{"id": true, "text": "x"}', "line 2: id is True, not a text"),
        ('{"id": "first", "text": "x"}', "line 2: its id 'first' is line 1's already"),
        ('{"id": "a", "text": "\\ud800"}', "line 2: text holds half a surrogate pair"),
    ],
)
def test_a_faulty_corpus_is_one_sentence(tmp_path, line, fault):
    file = tmp_path / "c.jsonl"
    file.write_text('{"id": "first", "text": "cat"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        BM25Retriever(file)
    assert fault in str(caught.value) and "build_corpus.py" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.bm25.lock", "c.jsonl"]


def test_a_corpus_that_is_none(tmp_path):
    for content, reason in (("", "holds no document"), ('{"id": "a", "text": "the"}', "holds no word")):
        (tmp_path / "c.jsonl").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=reason):
            BM25Retriever(tmp_path / "c.jsonl")
    for spec, reason in ((tmp_path, "no corpus at"), (tmp_path / "x.jsonl", "no corpus at"), (__file__, "jsonl")):
        with pytest.raises(ValueError, match=reason):
            make_retriever(spec)


def test_a_folder_that_cannot_be_written_to(corpus, monkeypatch):
    def refuse(*arguments, **keywords):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("task.retrieval.bm25.save_positions", refuse)
    with pytest.raises(ValueError, match=r"cannot be made .*Permission denied.*copy the corpus"):
        BM25Retriever(corpus)


def test_equal_settings_share_a_retriever(corpus):
    assert make_retriever(corpus) is make_retriever(str(corpus))
    for spec in ("ftp://host/x", "http://", "https://[", "http://host:99999"):
        with pytest.raises(ValueError, match="address"):
            make_retriever(spec)


def test_a_missing_package_names_the_extra(corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"\[search\]"):
        BM25Retriever(corpus)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_works_in_a_forked_process(corpus):
    retriever = BM25Retriever(corpus)
    child = os.fork()
    if child == 0:
        os._exit(0 if ids(retriever, "Dead Sea") == ["jordan"] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_passages_are_a_line_each():
    passages = [Passage("1", "A\nB", "One.\n\nTwo.", 2.0), Passage("2", "", "Three.", 1.0)]
    assert format_passages(passages) == "Doc 1(Title: A B) One. Two.\nDoc 2(Title: ) Three.\n"
    assert format_passages([]) == ""


def test_an_error_has_a_known_kind():
    assert RetrievalError("timeout", "late").kind == "timeout"
    with pytest.raises(AssertionError):
        RetrievalError("late", "late")
