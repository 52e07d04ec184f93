"""A Python program to write, scored by running its unit tests.

Data: MBPP (CC BY 4.0), HumanEval (MIT), APPS and TACO (MIT), LiveCodeBench and the like, and any record whose answer is
one of

    {"tests": ["assert f(2) == 4", ...], "setup": "import math"}      run after the program, `setup` is optional
    {"cases": [{"input": "2\\n", "output": "4\\n"}, ...]}               the program reads standard input and prints

Reward: 1.0 if all tests pass, else 0.0; the share that passed is logged as `passed`. Trailing white space in printed
lines is ignored, all else is compared. Limits: 3 s of CPU time and 6 s of wall-clock time for all tests, 1 GiB of
memory per process and 1 MiB of output; a program that exceeds one, exits early, or leaves a process running scores 0.
task/runners/sandbox.py describes the sandbox and its limits. If the sandbox itself fails, the reward abstains (None)
and counts `sandbox_lost`. Metric: accuracy is pass@1 (Chen et al., 2021) with one sample.
"""

from statistics import fmean

from task.errors import UserError
from task.parsing.answers import answer_text, split_completion
from task.parsing.text import program_text
from task.runners.sandbox import run_program

STATUSES = ("time", "output", "processes", "crash")

TASK_CONFIG = {
    "task_type": "code-generation",
    "grpo_template": (
        "{Question}\n\nFirst think inside <think> </think>, then give the whole Python program inside "
        "<answer> </answer>."
    ),
    "description": "a Python program, scored by its unit tests in a sandbox",
    "input_format": "what the program should do, in words",
    "output_format": "Python, with or without a fence of three backticks",
    "frame": "none",
}

SELF_TEST = {
    "record": {"answer": {"tests": ["assert square(3) == 9", "assert square(-2) == 4"]}},
    "right": "<think>x times x</think><answer>```python\ndef square(x):\n    return x * x\n```</answer>",
    "wrong": "<think>x plus x</think><answer>```python\ndef square(x):\n    return x + x\n```</answer>",
}

METRICS = {"parse_failure_rate": "lower", "syntax_error_rate": "lower"}


def format_reward(completion, sol, **kw):
    """1.0 for exactly one thought and one answer block that contains a program; else 0.0. Runs nothing."""
    parts = split_completion(completion, kw.get("thought_end", "</think>"))
    return float(parts is not None and program_text(parts[1]) is not None)


def accuracy_reward(completion, sol, **kw):
    """(0.0 or 1.0, {"passed": share of the tests, "parse_fail", "time", "output", "processes", "crash": 0 or 1}).

    None without tests, or if the sandbox failed.
    """
    if sol is None:
        return None
    arguments = _tests(sol, kw.get("id"))
    program = parse_answer(completion, **kw)
    if program is None:
        return 0.0, {"passed": 0.0, "parse_fail": 1, **dict.fromkeys(STATUSES, 0)}
    outcome = run_program(program, **arguments)
    if outcome.status == "lost":
        return None, {"sandbox_lost": 1}
    right = outcome.status == "ok" and outcome.passed == outcome.total
    counts = {status: int(outcome.status == status) for status in STATUSES}
    return float(right), {"passed": outcome.passed / outcome.total, "parse_fail": 0, **counts}


def parse_answer(completion, **kw):
    """The program as written, without its fence, or None."""
    return program_text(answer_text(completion, kw.get("thought_end", "</think>")))


def compute_metrics(predictions, **kw):
    """parse_failure_rate, and syntax_error_rate over the programs that were found."""
    rows = [row for row in predictions if row["status"] != "load_error" and row["answer"] is not None]
    if not rows:
        return {}
    programs = [row["prediction"] for row in rows if row["prediction"] is not None]
    return {
        "parse_failure_rate": fmean(row["prediction"] is None for row in rows),
        "syntax_error_rate": fmean(not _compiles(program) for program in programs) if programs else 0.0,
    }


def _compiles(program: str) -> bool:
    try:
        compile(program, "program", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def _tests(sol, record_id) -> dict:
    """The record's tests as arguments of `run_program`."""
    rule = 'write {"tests": ["assert ...", ...]} or {"cases": [{"input": text, "output": text}, ...]}'
    if isinstance(sol, dict):
        tests, cases, setup = sol.get("tests"), sol.get("cases"), sol.get("setup", "")
        if cases is None and _texts(tests) and isinstance(setup, str) and all(map(_compiles, [setup, *tests])):
            return {"tests": tests, "setup": setup}
        if tests is None and isinstance(cases, list) and cases and all(map(_is_case, cases)):
            return {"cases": cases}
    raise UserError(f"record {record_id}: the answer holds no tests that can be run: {rule}.")


def _texts(value) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _is_case(case) -> bool:
    return isinstance(case, dict) and isinstance(case.get("input"), str) and isinstance(case.get("output"), str)
