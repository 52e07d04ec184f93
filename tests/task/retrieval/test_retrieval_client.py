"""The client of a search server: every fault has a kind, nothing outlives its time limit, nothing is paid for twice."""

import errno
import json
import multiprocessing
import os
import socket
import sqlite3
import threading
import time

import pytest
from local_server import LocalServer, send

pytest.importorskip("httpx2")
from task.retrieval import http_retriever
from task.retrieval.cache import SearchCache
from task.retrieval.http_retriever import MAX_QUERIES, HttpRetriever
from task.retrieval.passages import RetrievalError


def results(question) -> list:
    document = {"id": 7, "title": "T", "text": "x"}
    return [
        [{"document": document | {"text": query}, "score": float(rank)} for rank in range(question["topk"])]
        for query in question["queries"]
    ]


def echo(handler, question):
    send(handler, json.dumps({"result": results(question)}).encode())


def raw(content, status=200):
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda handler, question: send(handler, content, status)


@pytest.fixture
def server():
    server = LocalServer(echo)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(http_retriever, "BACK_OFF", 0.01)


def kind_of(retriever, query="cat"):
    with pytest.raises(RetrievalError) as caught:
        retriever.search([query], 2)
    assert "\n" not in str(caught.value)
    return caught.value.kind


def test_asks_in_the_servers_form_and_keeps_the_order(server):
    retriever = HttpRetriever(server.url)
    found = retriever.search(["b", "a", "b", "\ud800"], 2)
    assert server.asked == [{"queries": ["b", "a", "?"], "topk": 2, "return_scores": True}]
    assert [[one.text for one in each] for each in found] == [["b"] * 2, ["a"] * 2, ["b"] * 2, ["?"] * 2]
    assert (found[0][1].id, found[0][1].title, found[0][1].score) == ("7", "T", 1.0)
    assert retriever.search([], 2) == [] and len(server.asked) == 1


def test_reads_search_r1s_documents(server):
    document = {"id": "9", "contents": '"A "quoted" title"\nText\nof two lines.'}
    server.answer = raw({"result": [[{"document": document, "score": 1}, {"document": document, "score": 0}]]})
    found = HttpRetriever(server.url).search(["x"], 1)[0]
    assert [(one.title, one.text) for one in found] == [('A "quoted" title', "Text\nof two lines.")]
    server.answer = raw({"result": [[document]]})
    assert HttpRetriever(server.url).search(["x"], 1)[0][0].score == 0.0


def test_many_queries_are_several_calls(server):
    queries = [str(number) for number in range(2 * MAX_QUERIES + 1)]
    assert [each[0].text for each in HttpRetriever(server.url).search(queries, 1)] == queries
    assert [len(question["queries"]) for question in server.asked] == [MAX_QUERIES, MAX_QUERIES, 1]


@pytest.mark.parametrize(
    "content", [b"{'result': [[]]}", b'{"result": [[', b"", b"\xff\xfe", b"[" * 100_000, b"<html>down</html>"]
)
def test_what_is_not_json(server, content):
    server.answer = raw(content)
    assert kind_of(HttpRetriever(server.url)) == "bad_json"
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "content",
    [
        7, None, [], {}, {"result": None}, {"result": []}, {"result": [[], []]}, {"result": {"0": []}},
        {"result": [{}]}, {"result": [[7]]}, {"result": [[None]]}, {"result": [["text"]]}, {"result": [[{}]]},
        {"error": "no"},
        {"result": [[{"document": None, "score": 1}]]}, {"result": [[{"document": {"text": 7}, "score": 1}]]},
        {"result": [[{"document": {"text": "x"}, "score": "best"}]]}, {"result": [[{"document": {"text": "x"}}]]},
        {"result": [[{"document": {"text": "x"}, "score": float("nan")}]]}, {"result": [[{"contents": None}]]},
        {"result": [[{"text": "x", "title": ["a"]}]]},
    ],
)  # fmt: skip
def test_json_of_another_shape(server, content):
    server.answer = raw(content)
    assert kind_of(HttpRetriever(server.url)) == "bad_shape"


def test_a_failing_server_is_asked_three_times_and_a_refusing_one_once(server):
    for status, kind, calls in ((500, "http_500", 3), (503, "http_500", 3), (404, "http_400", 1), (302, "http_400", 1)):
        server.asked.clear()
        server.answer = raw({"result": [[]]}, status)
        assert kind_of(HttpRetriever(server.url)) == kind
        assert len(server.asked) == calls, status


def test_a_server_that_recovers_is_not_noticed(server):
    def answer(handler, question):
        (echo if len(server.asked) == 3 else raw(b"", 502))(handler, question)

    server.answer = answer
    assert len(HttpRetriever(server.url).search(["cat"], 2)[0]) == 2


def test_a_dead_server_is_said_soon():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    start = time.monotonic()
    assert kind_of(HttpRetriever(url)) == "refused"
    assert time.monotonic() - start < 3


def test_a_server_that_dies_while_it_answers(server):
    def answer(handler, question):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"result": ')
        handler.connection.shutdown(socket.SHUT_RDWR)

    server.answer = answer
    assert kind_of(HttpRetriever(server.url)) == "refused"
    assert len(server.asked) == 3


def slow_start(handler, question):
    time.sleep(5)
    echo(handler, question)


def drip(handler, question):
    """A byte a moment: no single wait is long, the whole is."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def drip_head(handler, question):
    for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(0.05)


@pytest.mark.parametrize("answer", [slow_start, drip, drip_head])
def test_a_late_answer_costs_one_time_limit(server, answer):
    server.answer = answer
    start = time.monotonic()
    assert kind_of(HttpRetriever(server.url, timeout=0.5)) == "timeout"
    assert time.monotonic() - start < 2
    assert len(server.asked) == 1


def test_a_large_document_comes_whole_and_too_large_an_answer_does_not(server, monkeypatch):
    server.answer = raw({"result": [[{"document": {"id": "1", "title": "t", "text": "word " * 200_000}, "score": 1}]]})
    assert len(HttpRetriever(server.url).search(["x"], 1)[0][0].text) == 1_000_000
    monkeypatch.setattr(http_retriever, "MAX_ANSWER", 500_000)
    assert kind_of(HttpRetriever(server.url)) == "too_large"


def in_threads(count, work):
    """What work(number) returned or raised, by number."""
    done = [None] * count

    def run(number):
        try:
            done[number] = work(number)
        except RetrievalError as error:
            done[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return done


def slowly(handler, question):
    time.sleep(0.2)
    echo(handler, question)


def test_threads_with_one_question_pay_once(server):
    server.answer = slowly
    retriever = HttpRetriever(server.url)
    found = in_threads(8, lambda number: retriever.search(["cat"], 2))
    assert len(server.asked) == 1 and all(each == found[0] for each in found)
    assert (retriever.sent, retriever.remembered) == (1, 7)


def test_threads_with_one_question_share_its_failure_and_it_is_not_kept(server):
    server.answer = lambda handler, question: (time.sleep(0.2), raw(b"no")(handler, question))
    retriever = HttpRetriever(server.url)
    found = in_threads(4, lambda number: retriever.search(["cat"], 2))
    assert [error.kind for error in found] == ["bad_json"] * 4 and len({id(error) for error in found}) == 4
    assert len(server.asked) == 1
    server.answer = echo
    assert len(retriever.search(["cat"], 2)[0]) == 2


def test_no_more_calls_at_once_than_allowed(server):
    server.answer = slowly
    retriever = HttpRetriever(server.url, concurrency=3)
    start = time.monotonic()
    assert all(isinstance(each, list) for each in in_threads(9, lambda number: retriever.search([str(number)], 1)))
    assert server.most_at_once == 3
    assert time.monotonic() - start < 9 * 0.2  # they did not go one after another


def test_answers_outlive_the_client_and_the_server(server, tmp_path):
    first = HttpRetriever(server.url, cache=tmp_path / "new" / "cache.sqlite")
    kept = first.search(["cat", "dog"], 2)
    server.stop()
    again = HttpRetriever(server.url, cache=tmp_path / "new" / "cache.sqlite")
    assert again.search(["dog", "cat"], 2) == kept[::-1]
    assert (again.sent, again.remembered) == (0, 2)
    assert kind_of(again, "bird") == "refused"
    with pytest.raises(RetrievalError):
        again.search(["cat"], 3)  # another top_k is another question
    server.http = LocalServer(echo).http  # for the fixture to stop


def ask_in_a_process(url, cache, start, answers):
    start.wait(20)
    answers.put(HttpRetriever(url, cache=cache).search(["cat"], 2)[0][0].text)


def test_processes_with_one_question_pay_once(server, tmp_path):
    server.answer = slowly
    context = multiprocessing.get_context("spawn")
    start, answers = context.Event(), context.Queue()
    arguments = (server.url, tmp_path / "cache.sqlite", start, answers)
    processes = [context.Process(target=ask_in_a_process, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    start.set()
    assert [answers.get(timeout=60) for _ in processes] == ["cat", "cat"]
    for process in processes:
        process.join(30)
    assert len(server.asked) == 1


def open_at_once(file, start, faults):
    start.wait()
    try:
        SearchCache("http://server", file)
        faults.put(None)
    except ValueError as error:
        faults.put(str(error))


@pytest.mark.slow
def test_processes_open_one_new_cache_at_the_same_moment(tmp_path):
    """SQLite reports a lock at once while another process changes the file to a write-ahead log."""
    context, faults = multiprocessing.get_context("fork"), []
    for i in range(30):
        start, answers = context.Event(), context.Queue()
        arguments = (tmp_path / f"{i}.sqlite", start, answers)
        processes = [context.Process(target=open_at_once, args=arguments) for _ in range(6)]
        for process in processes:
            process.start()
        start.set()
        faults += [answers.get(timeout=60) for _ in processes]
        for process in processes:
            process.join(30)
    assert faults == [None] * 180


def test_a_killed_process_leaves_answers_and_no_claim(server, tmp_path):
    def answer(handler, question):
        (slow_start if question["queries"] == ["claimed"] and len(server.asked) == 2 else echo)(handler, question)

    server.answer = answer
    retriever = HttpRetriever(server.url, cache=tmp_path / "cache.sqlite")
    child = os.fork()
    if child == 0:  # the parent's connections, loop and table are not its own
        retriever.search(["kept"], 1)
        threading.Timer(0.3, os.kill, (os.getpid(), 9)).start()
        retriever.search(["claimed"], 1)
    assert os.waitpid(child, 0)[1] == 9
    start = time.monotonic()
    retriever.search(["kept", "claimed"], 1)
    assert (retriever.sent, retriever.remembered) == (1, 1)
    assert time.monotonic() - start < 3


def test_a_claim_that_is_never_given_back_costs_patience_only(server, tmp_path, monkeypatch):
    file = tmp_path / "cache.sqlite"
    retriever = HttpRetriever(server.url, cache=file, timeout=0.1)
    here = retriever._here()
    monkeypatch.setattr(here.cache, "_claim", lambda place: False)
    assert len(retriever.search(["cat"], 2)[0]) == 2


def test_a_disk_without_locks_costs_the_claims_only(server, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    retriever = HttpRetriever(server.url, cache=tmp_path / "cache.sqlite")
    monkeypatch.setattr("task.retrieval.cache.fcntl.lockf", refuse)
    assert len(retriever.search(["cat"], 2)[0]) == 2
    assert retriever.search(["cat"], 2) and retriever.sent == 1


def test_a_cache_that_cannot_be_used(tmp_path):
    (tmp_path / "text").write_text("this is no data base, " * 100)
    with sqlite3.connect(tmp_path / "other.sqlite") as other:
        other.execute("create table answers (something integer)")
    other.close()
    for name in ("text", "other.sqlite", "."):
        with pytest.raises(ValueError, match=r"cannot be used .*name another file"):
            HttpRetriever("http://localhost:1", cache=tmp_path / name)


def test_a_cache_that_fails_later_costs_the_cache_only(server, tmp_path, caplog):
    retriever = HttpRetriever(server.url, cache=tmp_path / "cache.sqlite")
    retriever.search(["cat"], 2)
    retriever._here().cache._table.execute("update answers set passages = '[7]'")
    assert len(retriever.search(["cat"], 2)[0]) == 2
    retriever._here().cache._table.execute("drop table answers")
    assert len(retriever.search(["cat"], 2)[0]) == 2
    assert sum("search cache fails" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"timeout": float("nan")}, {"concurrency": 0}])
def test_settings_that_do_not_work(settings):
    with pytest.raises(ValueError, match="are invalid"):
        HttpRetriever("http://localhost:1", **settings)


def test_an_address_with_a_line_break_is_refused_at_once():
    with pytest.raises(ValueError, match="is not an address of a search server"):
        HttpRetriever("http://localhost:8000/retrieve\n")
