"""The code task: what counts as right, and what a hostile program can do to the machine that scores it."""

import json
import os
import random
import tempfile
import time
from pathlib import Path

import pytest
from paths import ROOT
from task_cases import DEGENERATE, metrics, mutated, prediction, said

from task import code_generation
from task.code_generation import accuracy_reward, format_reward, parse_answer
from task.runners import sandbox
from task.runners.sandbox import WALL_SECONDS, Outcome, isolation, run_program

NAME = "code-generation"
GOOD = "def f(x):\n    return x * x\n"
TESTS = {"tests": ["assert f(2) == 4", "assert f(3) == 9"]}
CASES = {"cases": [{"input": "3\n", "output": "9\n"}, {"input": "-4", "output": "16"}]}
MARK = "987.654321"  # how long the left-over process would sleep: what it is known by
SLEEP = f"import time; time.sleep({MARK})"
HOSTILE = {
    "an endless loop": "while True: pass",
    "a child that sleeps": GOOD + f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])",
    "a child that leaves its group": GOOD
    + "import os, sys\nif not os.fork():\n    os.setsid()\n"
    + f"    if not os.fork(): os.execv(sys.executable, [sys.executable, '-c', {SLEEP!r}])\n"
    "    os._exit(0)\n",
    "1 GB of output": GOOD + "for _ in range(1024): print('x' * 2**20)",
    "1 GB of errors": GOOD + "import os\nfor _ in range(1024): os.write(2, b'x' * 2**20)",
    "64 GB of memory": GOOD + "block = bytearray(64 * 2**30)",
    "reading standard input": GOOD + "input()",
    "exit before the asserts": GOOD + "import sys; sys.exit(0)",
    "a hard exit before the asserts": GOOD + "import os; os._exit(0)",
    "sleep that catches everything": "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass",
}
OUTSIDE = {
    "a file in the parent folder": "open('../grpo-ma-escape', 'w').write('x')",
    "a file elsewhere": f"open({str(Path(tempfile.gettempdir()) / 'grpo-ma-escape')!r}, 'w').write('x')",
}
ISOLATED = {
    "a connection": "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
    "a datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
}


def sleepers() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if MARK in path.read_bytes().decode("utf-8", "replace") else []
        except OSError:
            continue
    return found


def left_files() -> list[str]:
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("grpo-ma-escape")]


@pytest.mark.parametrize(
    ("program", "answer", "score", "passed"),
    [
        (GOOD, TESTS, 1.0, 1.0),
        (f"```python\n{GOOD}```", TESTS, 1.0, 1.0),
        ("def f(x):\n    return 4\n", TESTS, 0.0, 0.5),
        ("def f(x):\n    return x\n", TESTS, 0.0, 0.0),
        ("def g(x): return x", TESTS, 0.0, 0.0),
        ("def f(x: return", TESTS, 0.0, 0.0),
        (GOOD, {"tests": ["assert math.sqrt(f(2)) == 2"], "setup": "import math"}, 1.0, 1.0),
        (GOOD + "print('talk is allowed')", TESTS, 1.0, 1.0),
        (GOOD + "open('own.txt', 'w').write('so are files in its own folder')", TESTS, 1.0, 1.0),
        ("n = int(input())\nprint(n * n)", CASES, 1.0, 1.0),
        ("n = int(input())\nprint(n * n, ' ')\nprint()", CASES, 1.0, 1.0),
        ("print(9)", CASES, 0.0, 0.5),
        ("if __name__ == '__main__':\n    print(int(input()) ** 2)", CASES, 1.0, 1.0),
        ("raise SystemExit(1)", CASES, 0.0, 0.0),
    ],
)
def test_what_is_right(program, answer, score, passed):
    value, logged = accuracy_reward(said(program), answer, id="r")
    assert (value, logged["passed"], logged["parse_fail"]) == (score, passed, 0)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_scores_zero_and_leaves_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # others may run programs at the same time
    started = time.monotonic()
    score, logged = accuracy_reward(said(HOSTILE[name]), TESTS)
    assert score == 0.0 and sum(logged[status] for status in code_generation.STATUSES) == 1
    # The limit and a second; starting Python may take a busy machine longer than that.
    assert time.monotonic() - started < WALL_SECONDS + 1 + 5
    assert sleepers() == []
    assert list(tmp_path.iterdir()) == []


def test_processes_that_a_program_leaves_behind_are_noticed():
    for name in ("a child that sleeps", "a child that leaves its group"):
        assert accuracy_reward(said(HOSTILE[name]), TESTS)[1]["processes"] == 1


LIAR = "class Liar:\n    def __eq__(self, other): return True\n    __hash__ = lambda self: 4\n"
CHEATS = {
    "equal to anything": LIAR + "f = lambda x: Liar()",
    "an int that is equal to anything": LIAR.replace("Liar:", "Liar(int):") + "f = lambda x: Liar(0)",
    "the standard library's own liar": "from unittest.mock import ANY\nf = lambda x: ANY",
    "other builtins": "import builtins\nbuiltins.abs = lambda x: 0\nf = lambda x: 0",
    "an exec that does nothing": "import builtins\nbuiltins.exec = lambda *a: None\nf = lambda x: 0",
    "a forged report": "import os\nwrite = os.write\nos.write = lambda to, text: write(to, text[:-1] + b'2')\n"
    "f = lambda x: 0",
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_cheats_the_asserts_fails_them(name):
    tests = {"tests": ["assert f(2) == 4", "assert abs(f(2) - 4) < 1e-6"]}
    score, logged = accuracy_reward(said(CHEATS[name]), tests)
    assert (score, logged["passed"]) == (0.0, 0.0)


@pytest.mark.parametrize("wrapped", ["[Liar()]", "{'a': (1, [Liar()])}", "{Liar()}"])
def test_a_liar_is_found_inside_what_a_program_returns(wrapped):
    right = {"[Liar()]": "[4]", "{Liar()}": "{4}"}.get(wrapped, "{'a': (1, [4])}")
    assert accuracy_reward(said(LIAR + f"f = lambda x: {wrapped}"), {"tests": [f"assert f(2) == {right}"]})[0] == 0.0


@pytest.mark.parametrize(
    ("method", "test"),
    [
        ("__eq__ = lambda s, o: isinstance(o, int)", "assert f(1) == 99"),
        ("__eq__ = lambda s, o: isinstance(o, int)", "assert 99 == f(1)"),
        ("__eq__ = lambda s, o: isinstance(o, int)", "assert [f(1)] == [99] and (f(1),) == (99,)"),
        ("__eq__ = lambda s, o: isinstance(o, int)", "assert {'a': f(1)} == {'a': 99}"),
        ("__eq__ = lambda s, o: isinstance(o, int)", "assert f(1) in [99]"),
        ("__eq__ = lambda s, o: isinstance(o, int)", "assert 99 in [f(1)]"),
        ("__eq__ = lambda s, o: isinstance(o, int) and abs(o) < 1000", "assert f(1) == 99"),
        ("__eq__ = lambda s, o: isinstance(o, (int, float))", "assert f(1) == 0.5"),
        ("__eq__ = lambda s, o: isinstance(o, str)", "assert f(1) == 'x'"),
        ("__eq__ = lambda s, o: isinstance(o, list)", "assert f(1) == [1, 2]"),
        ("__eq__ = lambda s, o: isinstance(o, (dict, set, tuple, bytes))", "assert f(1) == {1: 2}"),
        ("__eq__ = lambda s, o: isinstance(o, (dict, set, tuple, bytes))", "assert f(1) == {1, 2}"),
        ("__eq__ = lambda s, o: isinstance(o, (bool, type(None)))", "assert f(1) == True"),
        ("__eq__ = lambda s, o: 1", "assert f(1) == 99"),
        ("__contains__ = lambda s, o: True", "assert 5 in f(1)"),
        ("__lt__ = __gt__ = lambda s, o: True", "assert 98 < f(1) < 100"),
        ("__eq__ = __ne__ = lambda s, o: False", "assert not f(1) != 99"),
        ("__sub__ = lambda s, o: 0", "assert abs(f(1) - 99) < 1e-6"),
    ],
)
def test_an_object_that_is_true_of_a_whole_type_fails_the_test(method, test):
    program = f"class Liar:\n    {method}\n    __hash__ = lambda self: 1\nf = lambda x: Liar()"
    assert accuracy_reward(said(program), {"tests": [test]})[0] == 0.0


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("from fractions import Fraction\nf = Fraction", "assert f(2) == 2 and 2 in [f(2)]"),
        (
            "from collections import namedtuple\nP = namedtuple('P', 'a b')\nf = lambda x: P(x, x)",
            "assert f(2) == (2, 2)",
        ),
        (
            "class P:\n    def __init__(self, a): self.a = a\n    def __eq__(self, o): return self.a == o.a\nf = P",
            "assert f(2) == P(2) != f(3)",
        ),
        ("def f(x):\n    own = [x]\n    own.append(own)\n    return own", "assert f(2)[0] == 2 and f(2) != 3"),
        ("import numpy as np\nf = lambda x: np.array([x])", "assert (f(2) == [2]).all() and f(2) == 2"),
        ("f = lambda x: iter([1, 2, 3])", "assert 3 in f(1) and list(f(1)) == [1, 2, 3]"),
        ("import numpy as np\nf = lambda x: np.array([np.inf]).max()", "assert f(1) == float('inf')"),
        ("import numpy as np\nf = lambda x: np.float64(1e20)", "assert f(1) == 10**20"),
        ("import numpy as np\nf = lambda x: np.float32(1e9)", "assert abs(f(1) - 1e9) < 1 and f(1) - 100 < f(1)"),
        ("import numpy as np\nf = lambda x: np.bool_(False)", "assert f(1) == False == f(2) and f(1) == 0"),
        ("import numpy as np\nf = lambda x: np.array([])", "assert (f(1) == []).all() and len(f(1)) == 0"),
        ("from decimal import Decimal\nf = Decimal", "assert f(3) - 1 == 2 and 1 < f(2) < 3"),
        ("from collections import Counter\nf = Counter", "assert f('ab') - f('a') == f('b') == {'b': 1}"),
        (
            "class M:\n    def __init__(self, a): self.a = a % 7\n"
            "    def __eq__(self, o): return self.a == (o.a if isinstance(o, M) else o % 7)\nf = M",
            "assert f(10) == 3 and f(10) == f(3)",
        ),
        ("f = lambda x: x", "assert 1 < f(2) < 3 <= f(3) and not 1 < f(0) < [] and 5 - f(3) - 1 == 1"),
        ("f = lambda x: [[i] for i in range(10**5)]", "assert f(2) == [[i] for i in range(10**5)]"),
    ],
)
def test_honest_objects_are_compared_as_they_are(program, test):
    assert accuracy_reward(said(program), {"tests": [test]})[0] == 1.0


FUTURE = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
OWN_MODULE = {
    "a dataclass with postponed annotations": FUTURE + "f = lambda x: P(x).x",
    "its fields": FUTURE + "    y: ClassVar[int] = 3\nfrom typing import ClassVar\nf = lambda x: P(x).x",
    "type hints": FUTURE + "import typing\nf = lambda x: x if typing.get_type_hints(P) == {'x': int} else 0",
    "pickle": "import pickle\nclass P:\n    def __init__(self, x): self.x = x\n"
    "f = lambda x: pickle.loads(pickle.dumps(P(x))).x",
    "its own name": "import sys\nf = lambda x: x if sys.modules[__name__].f is f else 0",
    "the main module": "import __main__\nf = lambda x: 0 if hasattr(__main__, 'keep') else x",
}


@pytest.mark.parametrize("name", OWN_MODULE)
def test_a_program_is_a_module_of_its_own(name):
    assert accuracy_reward(said(OWN_MODULE[name]), {"tests": ["assert f(3) == 3"]})[0] == 1.0
    printing = OWN_MODULE[name] + "\nprint(f(int(input())))"
    assert accuracy_reward(said(printing), {"cases": [{"input": "3", "output": "3"}]})[0] == 1.0


READS = {
    "records": "open({records!r}).read()",
    "the folder of the records": "import os; os.listdir(os.path.dirname({records!r}))",
    "a file of the machine": "open('/etc/passwd').read()",
    "the root": "import os; os.listdir('/')",
    "the folder above its own": "import os; os.listdir('..')",
    "the environment of its parent": "import os; open(f'/proc/{{os.getppid()}}/environ').read()",
    "by another program": "import subprocess; subprocess.run(['cat', {records!r}], check=True)",
    "by a child": "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-c', 'open(' + repr({records!r}) + ')'], check=True)",
    "by ctypes": "import ctypes, os\nassert ctypes.CDLL(None).open({records!r}.encode(), 0) >= 0",
    "by a link": "import os; os.symlink({records!r}, 'link'); open('link').read()",
    "the project": "import task.code_generation",
}


@pytest.mark.parametrize("name", READS)
def test_reading_ends_at_python_and_the_work_folder(name, tmp_path):
    if not isolation()["files"]:
        pytest.skip("this kernel has no Landlock")
    records = tmp_path / "records.jsonl"
    records.write_text(json.dumps({"answer": TESTS}))
    assert accuracy_reward(said(GOOD + READS[name].format(records=str(records))), TESTS)[0] == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "import ssl, sqlite3, ctypes.util, decimal, curses, multiprocessing; multiprocessing.cpu_count()",
        "import zoneinfo; zoneinfo.ZoneInfo('Europe/Paris')",
        "import secrets, tempfile; open('/dev/urandom', 'rb').read(2); secrets.token_hex(); tempfile.TemporaryFile()",
        "import numpy as np, scipy.optimize; np.linalg.inv(np.eye(3))",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import numpy'], check=True)",
        "open('m.py', 'w').write('y = 1'); import os, sys; assert os.listdir('.'); sys.path.insert(0, ''); import m",
        "import traceback\ntry: 1 / 0\nexcept Exception: traceback.format_exc()",
    ],
)
def test_what_a_program_needs_can_be_read(program):
    assert accuracy_reward(said(GOOD + program), TESTS)[0] == 1.0
    for opened in ("open(0)", "open('/dev/stdin')"):
        assert accuracy_reward(said(f"print(int({opened}.read()) ** 2)"), CASES)[0] == 1.0


@pytest.mark.parametrize("name", OUTSIDE)
def test_writing_outside_its_folder_leaves_no_file(name):
    score, _ = accuracy_reward(said(GOOD + OUTSIDE[name]), TESTS)
    if isolation()["files"]:
        assert score == 0.0
    elif name == "a file elsewhere":
        pytest.skip("this kernel has no Landlock")
    assert left_files() == []


@pytest.mark.parametrize("name", ISOLATED)
def test_there_is_no_network(name):
    assert accuracy_reward(said(GOOD + ISOLATED[name]), TESTS)[0] == 0.0


def test_the_environment_is_empty(monkeypatch):
    monkeypatch.setenv("GRPO_MA_SECRET", "s3cret")
    program = GOOD + "import os\nassert 'GRPO_MA_SECRET' not in os.environ and os.listdir('.') == []"
    assert accuracy_reward(said(program), TESTS)[0] == 1.0


@pytest.mark.parametrize("name", ["a child that sleeps", "a child that leaves its group", "an endless loop"])
def test_without_namespaces_the_processes_end_too(name, tmp_path, monkeypatch):
    """The way taken where a container forbids namespaces: left-over processes are looked for and killed."""
    text = Path(sandbox.SUPERVISOR).read_text().replace("NEW_USER | NEW_PID | NEW_NET | NEW_IPC) == 0", "-1) == 0")
    assert "unshare(-1)" in text
    (tmp_path / "code_process.py").write_text(text)
    monkeypatch.setattr(sandbox, "SUPERVISOR", tmp_path / "code_process.py")
    assert accuracy_reward(said(GOOD), TESTS)[0] == 1.0
    assert accuracy_reward(said(HOSTILE[name]), TESTS)[0] == 0.0
    assert accuracy_reward(said(GOOD + ISOLATED["a connection"]), TESTS)[0] == 0.0
    assert sleepers() == []


def test_a_failed_sandbox_abstains(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(sandbox, "SUPERVISOR", tmp_path / "broken.py")
    outcome = run_program(GOOD, **TESTS)
    assert outcome.status == "lost" and "status 3" in outcome.reason
    assert accuracy_reward(said(GOOD), TESTS) == (None, {"sandbox_lost": 1})


def test_the_tests_of_a_record_are_checked():
    none = ["assert True", [], {}, {"tests": []}, {"tests": [1]}, {"cases": [{"input": "1"}]}, {**TESTS, **CASES}]
    for sol in (*none, {"tests": ["assert f(2) = 4"]}, {**TESTS, "setup": "import"}):
        with pytest.raises(ValueError, match="record r9: the answer holds no tests"):
            accuracy_reward(said(GOOD), sol, id="r9")
    assert accuracy_reward(said(GOOD), None) is None


def test_form_and_degenerate_texts():
    assert format_reward(said(f"```python\n{GOOD}```"), TESTS) == 1.0
    for text in [*DEGENERATE, said(""), said("```python\nx = 1"), said("```a```b```c```"), said("x" * 20_001)]:
        assert format_reward(text, TESTS) == 0.0
        score, logged = accuracy_reward(text, TESTS)
        assert score == 0.0 and logged["parse_fail"] == 1 and parse_answer(text) is None


def test_metrics():
    rows = [prediction(NAME, said(text), TESTS, (None, None)) for text in (GOOD, "def f(", "")]
    assert metrics(NAME, *rows) == {"parse_failure_rate": 1 / 3, "syntax_error_rate": 0.5}
    assert [row["accuracy"] for row in rows] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_completions(count, monkeypatch):
    """Everything but the run itself, which would take a process each."""
    monkeypatch.setattr(code_generation, "run_program", lambda program, **_: Outcome("ok", len(program) % 3, 2))
    draw, seen = random.Random(NAME), set()
    for _ in range(count):
        completion = mutated(said(f"```python\n{GOOD}```"), draw)
        form, (score, logged) = format_reward(completion, TESTS), accuracy_reward(completion, TESTS)
        assert form in (0.0, 1.0) and score in (0.0, 1.0)
        assert all(0 <= value <= 1 for value in logged.values())
        seen.add((form, score))
    assert {(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)} <= seen


def test_shipped_records_can_be_solved():
    lines = (ROOT / "metadata" / "demo" / "code" / "train.jsonl").read_text().splitlines()
    for record in map(json.loads, lines[:3]):
        arguments = code_generation._tests(record["answer"], record["id"])
        table = {case["input"].strip(): case["output"] for case in arguments.get("cases", [])}
        known = [test.removeprefix("assert f(").split(") == ") for test in arguments.get("tests", [])]
        table |= dict(known)
        program = f"TABLE = {table!r}\n"
        program += "print(TABLE[input().strip()])" if "cases" in arguments else "def f(x): return int(TABLE[str(x)])"
        assert run_program(program, **arguments) == Outcome("ok", 4, 4), record["id"]
