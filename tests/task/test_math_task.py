"""The mathematics task: what is equal, what only looks so, and a verifier that can neither hang nor fall silent."""

import math
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from paths import ROOT
from task_cases import DEGENERATE, TASKS, metrics, mutated, prediction, said

from task import math_reasoning
from task.math_reasoning import VERIFIER, accuracy_reward, compare, format_reward, parse_answer
from task.runners import judge as judge_file
from task.runners.judge import Judge
from task.runners.optional import MissingPackage

NAME = "math-reasoning"


@pytest.fixture
def verifier():
    pytest.importorskip("math_verify", reason="the extra `math` is not installed")


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("17", "7", False),
        ("1,234", "1234", True),
        ("$1,234.50", "1234.5", True),
        (".5", "0.50", True),
        ("18", "18.0", True),
        ("-5", "5", False),
        ("A", "(a)", True),
        ("A", "B", False),
        ("A", "A or B", False),
        ("garden phlox", "Garden phlox.", True),
        ("Evelyn", "lynEve", False),
        (r"\text{Evelyn}", "Evelyn", True),
        (r"\text{odd}", r"$\mathrm{odd}$", True),
        (r"12\text{ inches}", "12 inches", True),
        (r"\text{(A)}", r"\boxed{\textbf{(A)}}", True),
        ("(C)", "**c**", True),
        ("B", "$B$", True),
        ("1000000", "1 000 000", True),
        ("1000000", r"1\,000\,000", True),
        ("1000000", "1{,}000{,}000", True),
        ("10000", r"10,\!000", True),
        ("1000000", "1.0e6", True),
        ("0.000001", "1e-6", True),
        ("-5", "\u22125", True),
        ("-5", "\u20135.", True),
        ("5", "\uff15", True),
        ("5", "5\u200b", True),
        ("5", "**5**", True),
        ("5", r"\$5.00", True),
        ("60", r"60\%", True),
        ("60%", "60", True),
        ("60", "0.6", False),
        ("60%", "0.6%", False),
        ("50%", "0.5", True),
        ("9:00", "10:00", False),
        ("9:00", "09:00", True),
        ("9:00", "9:00 a.m.", True),
        ("9:00 AM", "9:00 p.m.", False),
        (r"9:00 \text{ a.m.}", "9:00 AM", True),
        ("9:00", "9", False),
        ("3:05", "6:10", False),  # as quotients they would be equal
        ("3:15", "4:20", False),
        ("1:02:03", "1:02:30", False),
    ],
)
def test_answers_that_need_no_verifier(gold, answer, same, monkeypatch):
    monkeypatch.setattr(math_reasoning, "VERIFIER", None)
    assert compare(answer, gold) == ("equal" if same else "different")


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        (r"\frac{1}{3}", r"\boxed{1/3}", True),
        ("1/2", "0.5", True),
        ("0.5", r"50\%", True),
        ("50%", "0.5", True),
        (r"\{1,2\}", "{2,1}", True),
        ("(0,1)", "[0,1)", False),
        ("3x + 4y + 14=0", "3*x-1*y+13=0", False),
        ("1/2004!", "1/2006!", False),
        ("1/2004!", "1/2004!", True),
        ("1/2^{99}", "1/2^{98}", False),
        ("10^{10}", "10^{10}+1", False),
        ("1/3", "0.333333", True),
        ("1/3", "0.33", False),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", True),
        (r"\frac{\pi}{2}", "pi/2", True),
        ("(x-1)^2", "x^2-2x+1", True),
        ("5", "x=5", True),
        ("5", "4=5", False),
        ("5", "5 or 6", False),
        ("5", "4, 5", False),
        ("5", r"\frac{", False),
        ("1000", "1,00", False),
        ("102", "10\u00b2", False),  # not by leaving out what makes it a power
        ("100", "10\u00b2", True),
        ("100", "10**2", True),
        ("10^{-9}", "10\u207b\u2079", True),
        ("10^{-9}", "10^-9", True),
        ("5/2", "2 1/2", True),
        ("3/2", "2 1/2", False),  # math-verify reads (2 + 1) / 2
        ("-5/2", "-2\u00bd", True),
        ("51/2", "5\u00bd", False),
        ("1/2", r"\[\frac12\].", True),
        (r"3\sqrt{2}", "3\u221a2", True),
        ("(3,\\infty)", "(3, \u221e)", True),
        ("45", "45\u00b0", True),
        ("x^2+2x+1", "f(x) = (x+1)\u00b2", True),
        (r"12\text{ inches}", "12", True),
        (r"12\text{ inches}", "13", False),
        (r"\begin{pmatrix} 1 \\ -2 \end{pmatrix}", r"\begin{bmatrix}1\\-2\end{bmatrix}", True),
        (r"\begin{pmatrix} 1 \\ -2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", False),
        ("5", "x=10/2=5", True),
        ("5", "x=6=5", False),
        ("5", "1=2=5", False),
        ("5", "$4$ $5$", False),
        ("5", "$5$ is wrong", False),
        (r"\{5,6\}", "$5$ and $6$", True),
        ("9 and 10", "9, 10", True),
        ("9 and 10", "10 and 9", True),
        ("9 and 10", "9", False),
        ("9 and 10", "9, 11", False),
        ("9, and 10", "9,10", True),
        (r"9 \text{ and } 10", "9, 10", True),
        ("9 and -9", "±9", True),
        ("x=9 and x=10", "9, 10", True),
        ("e^{16}-1", "-1+exp(16)", True),
        ("e^{16}-1", "exp(16)", False),
        ("e^16-1", r"-1+\exp(16)", True),
        ("2^{10}", "2^10", True),
        (r"\ln 2", "ln(2)", True),
        (r"\sin 1", "sin(1)", True),
        ("arctan(2)", r"\arctan 2", True),
        (r"\log_2 3", "log_2(3)", True),
        ("sec(1)", r"\sec 1", True),
        (r"5\text{ min}", "5 min", True),
        (r"0.\overline{3}", "1/3", True),
        (r"0.\overline{3}", "0.333333", True),
        (r"0.\overline{3}", "0.3", False),
        (r"0.\bar{3}", r"\frac13", True),
        (r"1.2\overline{34}", "611/495", True),
        (r"-0.\overline{3}", "-1/3", True),
        (r"0.\dot{1}4285\dot{7}", "1/7", True),
        ("1/3", "0.(3)", True),
        ("1/3", "0.333...", True),
        ("1/3", r"x = 0.333\ldots", True),
        (r"1,234.\overline{5}", "11111/9", True),
        (r"\infty", r"x = \infty", True),
        (r"\infty", r"-\infty", False),
        (r"\infty", "1/0", False),
        (r"\tan(\pi/2)", r"\cot(0)", False),
        ("5", "1/0", False),
        ("1:2", "2:4", True),
        (r"\frac{100}{3}\%", r"33\frac{1}{3}\%", True),
        (r"33\frac{1}{3}\%", "1/3", True),
        (r"33\frac{1}{3}\%", r"\frac{100}{3}", True),
        (r"33.\overline{3}\%", "1/3", True),
        (r"\frac{100}{3}\%", r"\frac{1}{3}\%", False),
        (r"\frac{1}{3}", r"\frac{1}{3}\%", True),
        ("1/3", r"33\%", False),
        (r"50\%, 20\%", r"20\%, 50\%", True),
        (r"50\%, 20\%", r"20\%, 60\%", False),
        ("3:10", "0.3", True),
    ],
)
def test_mathematics_is_compared_as_mathematics(verifier, gold, answer, same):
    score, logged = accuracy_reward(said(answer), gold, id="r")
    assert score == float(same) and logged["timeout"] == 0


def test_off_the_main_thread_and_after_a_fork(verifier):
    found = []
    thread = threading.Thread(target=lambda: found.append(accuracy_reward(said(r"\boxed{\frac13}"), "1/3")))
    thread.start()
    thread.join()
    assert found[0][0] == 1.0
    child = os.fork()
    if child == 0:
        os._exit(int(accuracy_reward(said("2/6"), "1/3")[0] != 1.0))
    assert os.waitpid(child, 0)[1] == 0
    assert accuracy_reward(said("2/6"), "1/3")[0] == 1.0


def test_a_lost_verifier_abstains_and_comes_back(verifier, monkeypatch):
    assert accuracy_reward(said("2/6"), "1/3")[0] == 1.0
    os.kill(VERIFIER._worker.pid, signal.SIGKILL)
    VERIFIER._worker.wait()
    assert accuracy_reward(said("2/6"), "1/3")[0] == 1.0  # started anew
    monkeypatch.setattr(math_reasoning, "VERIFIER", Judge("no_such_judge"))
    assert accuracy_reward(said("2/6"), "1/3") == (None, {"verifier_lost": 1})
    assert accuracy_reward(said("nothing to verify"), "two words")[0] == 0.0


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises((MissingPackage, ValueError), match="math_verify"):
        compare("2/6", "1/3")


def test_the_gold_answer_is_checked(verifier):
    for sol in ([], {}, "", ["1", None], True):
        with pytest.raises(ValueError, match="record r9: the answer"):
            accuracy_reward(said("1"), sol, id="r9")
    with pytest.raises(ValueError, match=r"record r9: the answer '_\{' cannot be read"):
        accuracy_reward(said("1"), "_{", id="r9")
    for undefined in ("1/0", "0/0", r"3 + \frac{1}{0}", "(1/0, 5)"):
        with pytest.raises(ValueError, match="cannot be read as mathematics"):
            accuracy_reward(said("2/0"), undefined, id="r9")
    assert accuracy_reward(said("1"), None) is None
    assert accuracy_reward(said("2"), ["1", "2"])[0] == 1.0 and accuracy_reward(said("7"), 7)[0] == 1.0


@pytest.mark.slow
def test_pathological_answers_are_stopped_and_counted(verifier, monkeypatch):
    towers = [f"{n}^{{10^{{10}}}}!" for n in range(10, 26)]
    nests = ["(" * n + "1" + ")" * n for n in range(60, 76)]
    accuracy_reward(said("2/6"), "1/3")
    monkeypatch.setattr(judge_file, "WALL_SECONDS", 10.0)
    started = time.monotonic()
    results = [accuracy_reward(said(answer), "1/3") for answer in towers + nests]
    assert time.monotonic() - started < 32 * 10.0
    assert all(score == 0.0 for score, _ in results)
    assert sum(logged["timeout"] for _, logged in results) == 32
    assert [accuracy_reward(said("2/6"), "1/3")[0] for _ in range(4)] == [1.0] * 4


def test_form_and_degenerate_texts():
    assert format_reward(said(r"so \boxed{5}"), "5") == 1.0
    assert format_reward(said(r"\boxed{5} \boxed{6}"), "5") == 0.0
    for text in [*DEGENERATE, said(""), said("1" * 401), said("\\boxed{" * 300)]:
        assert format_reward(text, "5") == 0.0
        assert accuracy_reward(text, "5") == (0.0, {"parse_fail": 1, "timeout": 0})
        assert parse_answer(text) is None


def test_metrics():
    rows = [prediction(NAME, text, "5", (None, None)) for text in (said(r"\boxed{5}"), said(""), None)]
    assert metrics(NAME, *rows) == {"parse_failure_rate": 0.5, "boxed_share": 0.5}
    assert metrics(NAME, rows[2]) == {}


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_completions(count):
    draw, seen = random.Random(NAME), set()
    for _ in range(count):
        completion = mutated(said(r"\boxed{1234}"), draw)
        # A number against a number: the verifier, whose answers the tests above pin, is asked by the others only.
        answer = parse_answer(completion)
        if answer is not None and math_reasoning.same_plain_number(answer, "1") is None:
            continue
        form = TASKS[NAME].format_reward(completion, "1234")
        score, _ = TASKS[NAME].accuracy_reward(completion, "1234")
        assert form in (0.0, 1.0) and score in (0.0, 1.0) and math.isfinite(score)
        seen.add((form, score))
    assert {(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)} <= seen


def test_importing_the_task_imports_no_sympy():
    code = "import sys, task.math_reasoning; assert not {'sympy', 'math_verify', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
