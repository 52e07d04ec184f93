"""scripts/watch.py: serves the report of a run that still trains, on this machine only, and keeps it up to date."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import report_cases as cases
from interrupts import heed_interrupts
from page_measures import measured, wait_until
from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from report import live as live_module
from report.live import LivePage, make_server, signature

from task.task_loader import load_tasks

pytest_plugins = ["browser"]


@contextmanager
def serving(*folders):
    """The port of a server in this process."""
    server = make_server(LivePage(list(folders), load_tasks()), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def get(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(live_module, "LEAST_PAUSE", 0.0)
    monkeypatch.setattr(live_module, "PAUSE_FACTOR", 0.0)


def append(folder, *entries):
    with (folder / "log.jsonl").open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(entry) + "\n" for entry in entries)


def test_the_page_and_its_news(tmp_path):
    cases.write_lines(tmp_path / "log.jsonl", [{"event": "start", "max_steps": 50}, {"step": 5, "reward": 0.1}])
    with serving(tmp_path) as port:
        status, page = get(port, "/")
        assert status == 200
        assert 'data-live="yes"' in page
        assert "connect-src 'self'" in page
        version = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))["version"]
        assert get(port, f"/news?have={version}") == (204, "")
        append(tmp_path, {"step": 10, "reward": 0.2})
        status, news = get(port, f"/news?have={version}")
        news = json.loads(news)
        assert (status, news["version"] != version) == (200, True)
        assert news["data"]["runs"][0]["series"]["reward"] == [[5, 10], [0.1, 0.2]]
        assert get(port, "/etc/passwd")[0] == 404


def test_a_line_that_is_being_written_waits(tmp_path):
    cases.write_lines(tmp_path / "log.jsonl", [{"step": 5, "reward": 0.1}])
    live = LivePage([tmp_path], load_tasks())
    with (tmp_path / "log.jsonl").open("a") as out:
        out.write('{"step": 10, "rew')
    run = live.news("")["data"]["runs"][0]
    assert run["series"]["reward"] == [[5], [0.1]]
    with (tmp_path / "log.jsonl").open("a") as out:
        out.write('ard": 0.3}\n')
    assert live.news("")["data"]["runs"][0]["series"]["reward"] == [[5, 10], [0.1, 0.3]]


def test_a_run_that_has_not_started_is_waited_for(tmp_path):
    live = LivePage([tmp_path], load_tasks())
    first = live.news("")
    assert first["data"]["runs"][0]["series"] == {}
    cases.write_run(tmp_path)
    news = live.news(first["version"])
    assert len(news["data"]["runs"][0]["trees"]) == 15


def test_a_folder_that_goes_away_leaves_the_page(tmp_path, capsys):
    folder = cases.write_run(tmp_path / "run")
    live = LivePage([folder], load_tasks())
    folder.rename(tmp_path / "moved")
    assert live.news("")["data"]["runs"][0]["series"]["reward"]
    assert "is not a folder" in capsys.readouterr().err


def test_only_this_machine_is_answered(tmp_path):
    cases.write_run(tmp_path)
    with serving(tmp_path) as port:
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example"):
            assert get(port, "/", host)[0] == 403
        for host in ("localhost", f"localhost:{port}", "127.0.0.1", f"[::1]:{port}"):
            assert get(port, "/news?have=x", host)[0] == 200


def test_the_signature_follows_the_files_of_the_page_and_no_others(tmp_path):
    cases.write_run(tmp_path)
    before = signature([tmp_path])
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert signature([tmp_path]) == before
    append(tmp_path, {"step": 500, "reward": 1.0})
    assert signature([tmp_path]) != before


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    cases.write_run(tmp_path)
    command = [sys.executable, str(ROOT / "scripts" / "watch.py"), str(tmp_path), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, preexec_fn=heed_interrupts)
    try:
        port = int(re.search(r"127\.0\.0\.1:(\d+)/", process.stdout.readline()).group(1))
        assert get(port, "/")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()


def test_mistakes_end_with_status_2_and_one_sentence(tmp_path):
    cases.write_run(tmp_path / "run")
    with serving(tmp_path / "run") as taken:
        for arguments, said in (
            ([tmp_path / "none"], "is not a folder"),
            ([tmp_path / "run", "--port", "70000"], "between 0 and 65535"),
            ([tmp_path / "run", "--port", str(taken)], "name another by --port"),
        ):
            command = [sys.executable, str(ROOT / "scripts" / "watch.py"), *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


@pytest.mark.slow
def test_the_browser_follows_a_run(open_page, tmp_path):
    """Metrics and trees appear without a reload; what was chosen, opened and scrolled to stays."""
    image = cases.picture(tmp_path / "a.png")
    log = cases.log_entries(50)
    cases.write_lines(tmp_path / "log.jsonl", log[:4])
    trees = [cases.thought_answer_tree(step, "scene", image) for step in (0, 20)]
    cases.write_lines(tmp_path / "trees.jsonl", trees[:1])
    with serving(tmp_path) as port:
        page = open_page(f"http://127.0.0.1:{port}/")
        assert "step 15 of 50" in page.locator("#live").inner_text()
        page.locator(".node").nth(2).click()
        page.locator("#other-metrics > summary").click()
        page.evaluate("scrollTo(0, 700)")
        with (tmp_path / "trees.jsonl").open("a") as out:
            out.write(json.dumps(trees[1]) + "\n")
        append(tmp_path, *log[4:])
        page.locator("#live", has_text="step 50 of 50").wait_for(timeout=15_000)
        assert "training has ended" in page.locator("#live").inner_text()
        assert page.locator("output").inner_text() == "step 1"
        assert page.locator(".node[aria-pressed=true]").count() == 1
        assert page.evaluate("document.querySelector('#other-metrics').open")
        assert page.evaluate("scrollY") == pytest.approx(700, abs=5)
        page.get_by_label("Later step").click()
        assert page.locator("output").inner_text() == "step 21"
        assert measured(page, "layoutFaults") == []
        assert [said for said in page.said if "/news" not in said] == []
        linked = open_page(f"http://127.0.0.1:{port}/#tree=scene&step=1")
        assert linked.locator("output").inner_text() == "step 1"
    page.locator("body[data-connected=no]").wait_for(timeout=15_000)
    assert "start scripts/watch.py again" in page.locator("#live").inner_text()


@pytest.mark.slow
def test_what_one_types_and_drags_stays_while_the_run_goes_on(open_page, tmp_path):
    cases.write_run(tmp_path)
    predictions = [cases.prediction(i) for i in range(90)]
    cases.write_evaluation(tmp_path / "eval", predictions[:80])
    with serving(tmp_path) as port:
        page = open_page(f"http://127.0.0.1:{port}/")
        page.get_by_label("Training step").evaluate("slider => { slider.dataset.mine = 'yes'; }")
        search = page.get_by_placeholder("question, answer or id")
        search.fill("cone")
        search.focus()
        while (made := page.locator(".item").count()) < 80:
            page.evaluate("scrollTo(0, document.body.scrollHeight)")
            wait_until(page, f"document.querySelectorAll('.item').length > {made}")
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        place = page.evaluate("scrollY")
        append(tmp_path, {"step": 105, "reward": 0.9})
        page.locator("#live", has_text="step 105").wait_for(timeout=15_000)
        assert search.evaluate("input => document.activeElement === input && input.value") == "cone"
        assert page.get_by_label("Training step").get_attribute("data-mine") == "yes"
        assert page.evaluate("scrollY") == place
        cases.write_lines(tmp_path / "eval" / "parts" / "0.jsonl", predictions[80:])
        page.locator("#found", has_text="of 90 items").wait_for(timeout=15_000)
        assert page.evaluate("scrollY") == place
        assert search.input_value() == "cone"


@pytest.mark.slow
def test_a_comparison_keeps_its_length_and_its_search_while_an_evaluation_goes_on(open_page, tmp_path):
    predictions = [cases.prediction(i) for i in range(30)]
    cases.write_evaluation(tmp_path / "a" / "eval", predictions)
    cases.write_lines(tmp_path / "b" / "eval" / "parts" / "0.jsonl", predictions[:20])
    with serving(tmp_path / "a", tmp_path / "b") as port:
        page = open_page(f"http://127.0.0.1:{port}/")
        compare = page.locator("#compare")
        compare.get_by_role("button", name="Show more").click()
        compare.get_by_role("searchbox").focus()
        cases.write_lines(tmp_path / "b" / "eval" / "parts" / "1.jsonl", predictions[20:])
        compare.locator("p", has_text="30 records").wait_for(timeout=15_000)
        assert compare.locator(".record-pair").count() == 16
        assert compare.get_by_role("searchbox").evaluate("input => document.activeElement === input")


@pytest.mark.slow
def test_a_log_that_grows_while_it_is_read_never_breaks_the_page(tmp_path):
    cases.write_run(tmp_path)
    stop = threading.Event()

    def write():
        step = 200
        while not stop.is_set():
            line = json.dumps({"step": step, "reward": 0.5})
            with (tmp_path / "log.jsonl").open("a") as out:
                out.write(line[:10])
                out.flush()
                out.write(line[10:] + "\n")
            step += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with serving(tmp_path) as port:
            until = time.monotonic() + 4
            last = 0
            while time.monotonic() < until:
                status, news = get(port, "/news?have=")
                steps = json.loads(news)["data"]["runs"][0]["series"]["reward"][0]
                assert (status, steps == sorted(steps), steps[-1] >= last) == (200, True, True)
                last = steps[-1]
            assert last > 200
    finally:
        stop.set()
        writer.join()
