"""The search server: what it answers and refuses, in process; and as a process of its own, with a real corpus."""

import asyncio
import json
import runpy
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from paths import ROOT

pytest.importorskip("fastapi")
pytest.importorskip("bm25s")
from corpus_cases import DOCUMENTS, write_corpus
from starlette.testclient import TestClient

from task.retrieval.bm25 import BM25Retriever
from task.retrieval.http_retriever import HttpRetriever
from task.retrieval.passages import RetrievalError

SCRIPT = ROOT / "scripts" / "retrieval" / "serve.py"


class Watched:
    """A retriever that notes its searches and can be made slow or broken."""

    def __init__(self, retriever):
        self.retriever, self.documents = retriever, retriever.documents
        self.searches, self.seconds, self.broken = [], 0.0, False

    def search(self, queries, top_k):
        self.searches.append((list(queries), top_k))
        time.sleep(self.seconds)
        if self.broken:
            raise RuntimeError("the index is gone")
        return self.retriever.search(queries, top_k)


@pytest.fixture(scope="module")
def app_module():
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import search_app

        return search_app
    finally:
        sys.path.remove(str(SCRIPT.parent))


@pytest.fixture
def retriever(tmp_path):
    return Watched(BM25Retriever(write_corpus(tmp_path / "corpus.jsonl")))


@pytest.fixture
def client(app_module, retriever):
    with TestClient(app_module.make_app(retriever, "bm25"), raise_server_exceptions=False) as client:
        yield client


def test_answers_with_and_without_scores(client):
    question = {"queries": ["Dead Sea", "zzz"], "topk": 2, "return_scores": True}
    answer = client.post("/retrieve", json=question)
    (found, nothing) = answer.json()["result"]
    assert answer.status_code == 200 and nothing == [] and len(found) == 1 and found[0]["score"] > 0
    text = DOCUMENTS[2]["text"]
    document = {"id": "jordan", "title": "Jordan River", "text": text, "contents": f'"Jordan River"\n{text}'}
    assert found[0]["document"] == document
    assert client.post("/retrieve", json={"queries": ["Dead Sea"]}).json() == {"result": [[document]]}
    assert client.get("/health").json() == {"status": "ok", "documents": 4, "index": "bm25"}


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 400, "the body"),
        (b"{", 400, "the body"),
        (b"\xff", 400, "the body"),
        (b"[" * 50_000, 400, "the body"),
        ([], 400, "the body"),
        ({}, 400, "queries"),
        ({"queries": "Paris"}, 400, "queries"),
        ({"queries": []}, 400, "queries"),
        ({"queries": [7]}, 400, "queries.0"),
        ({"queries": ["x"] * 257}, 400, "queries"),
        ({"queries": ["x"], "topk": 0}, 400, "topk"),
        ({"queries": ["x"], "topk": 101}, 400, "topk"),
        ({"queries": ["x"], "topk": "3"}, 400, "topk"),
        ({"queries": ["x" * 2**20]}, 413, "longer than 1048576 bytes"),
    ],
)
def test_what_it_refuses_in_a_sentence(client, retriever, body, status, reason):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/retrieve", content=content)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"] and reason in answer.json()["error"] and "\n" not in answer.json()["error"]
    assert retriever.searches == []


def test_a_broken_index_is_a_500_and_the_next_search_works(client, retriever):
    retriever.broken = True
    answer = client.post("/retrieve", json={"queries": ["Dead Sea"]})
    assert (answer.status_code, answer.json()) == (500, {"error": "the search failed: the server's log says why."})
    retriever.broken = False
    assert client.post("/retrieve", json={"queries": ["Dead Sea"]}).status_code == 200


def test_questions_that_wait_are_searched_together(client, retriever):
    retriever.seconds = 0.2
    words = ["Dead Sea", "Paris", "Dead Sea", "zzz", "France", "café"]

    def ask(number):
        question = {"queries": [words[number]], "topk": number + 1}
        return [one["id"] for one in client.post("/retrieve", json=question).json()["result"][0]]

    with ThreadPoolExecutor(len(words)) as pool:
        found = list(pool.map(ask, range(len(words))))
    alone = [[one.id for one in retriever.retriever.search([word], n + 1)[0]] for n, word in enumerate(words)]
    assert found == alone
    assert len(retriever.searches) < len(words)  # some went together


def test_a_client_that_leaves_is_no_error(app_module, retriever):
    messages, sent = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}], []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/retrieve", "query_string": b"", "headers": []}
    asyncio.run(app_module.make_app(retriever, "bm25")(scope, receive, send))  # what it raised would fill the log
    assert sent[0]["status"] == 400 and not retriever.searches


def test_what_cannot_be_served(tmp_path, capsys):
    main = runpy.run_path(str(SCRIPT))["main"]
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    assert main(["--corpus", str(tmp_path / "none")]) == 2
    assert "no corpus at" in capsys.readouterr().err
    assert main(["--corpus", str(corpus), "--host", "256.1.1.1", "--port", "0"]) == 2
    assert "nothing can listen on 256.1.1.1 port 0" in capsys.readouterr().err
    assert main(["--corpus", str(corpus), "--port", "70000"]) == 2
    for flags in (["--query_prefix", "query: "], ["--passage_prefix", "passage: "]):
        with pytest.raises(SystemExit, match="2"):
            main(["--corpus", str(corpus), *flags])


class Process:
    """serve.py on a free port."""

    def __init__(self, *flags):
        command = [sys.executable, str(SCRIPT), "--port", "0", *map(str, flags)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.line = self.process.stdout.readline()
        self.url = self.line.split(" on ")[-1].strip()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.mark.slow
def test_a_server_process_and_its_client(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    with Process("--corpus", corpus) as server:
        assert server.line.startswith("serving 4 documents on http://127.0.0.1:")
        retriever = HttpRetriever(server.url, cache=tmp_path / "cache.sqlite", timeout=20)
        assert retriever.search(["Dead Sea", "Seine"], 2) == BM25Retriever(corpus).search(["Dead Sea", "Seine"], 2)
        seconds = []
        for number in range(20):
            start = time.perf_counter()
            retriever.search([f"river {number}"], 2)
            seconds.append(time.perf_counter() - start)
        assert sorted(seconds)[5] < 0.03  # with Nagle's wait for an ACK every one takes 0.04 s
        server.process.send_signal(signal.SIGKILL)  # in the midst of a run
        server.process.wait(30)
        with pytest.raises(RetrievalError) as caught:
            retriever.search(["France"], 2)
        assert caught.value.kind == "refused"
        assert [one.id for one in retriever.search(["Dead Sea"], 2)[0]] == ["jordan"]  # was paid for


@pytest.mark.slow
def test_a_server_ends_when_it_is_told_to(tmp_path):
    with Process("--corpus", write_corpus(tmp_path / "corpus.jsonl")) as server:
        server.process.terminate()
        server.process.wait(20)
