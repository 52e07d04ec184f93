"""Checks in seconds that tasks, prompts, rewards and metrics fit together. No GPU, no weights, no torch.

    python scripts/smoke_test.py

Prints one line per check; "skip" if a task needs a package that is not installed. Exit status 1 if any fails. A task
with a SELF_TEST (see task/TEMPLATE.py) is checked more thoroughly.
"""

import argparse
import difflib
import fnmatch
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _root import use_checkout

use_checkout()

from dataset.prompts import build_messages
from task import get_task, load_tasks, print_summary
from task.errors import place_of
from task.own_tasks import add_task_dir
from task.rewards.directions import direction
from task.rewards.router import reward_arguments, task_rewards
from task.rewards.self_test import run_self_test
from task.runners.optional import Unavailable
from trainer.evaluation.summary import summarise

IMAGE_SIZE, PROCESSED_SIZE = (640, 480), (644, 476)

HOSTILE = [
    "",
    " " * 100_000,
    "<answer>" * 16_000,
    "<think>" * 16_000,
    "[1,2,3," * 20_000,
    "<think>a</think><answer></answer>",
    "<think>a</think><answer>1</answer><think>b</think><answer>2</answer>",
    "\x00\ud800 <think>\u202e</think",
]


IN_FORM = "<think>a</think><answer>[[NaN, 1e999], [1, 2]]</answer>"  # a wrong answer of a text task


class CheckFailed(Exception):
    pass


def main(argv: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_task_dir(parser)
    parser.parse_args(argv)
    started, failures, skipped = time.monotonic(), 0, 0
    try:
        tasks = load_tasks()
    except ValueError as error:
        print(f"FAIL  registry: {error}")
        return 1
    print_summary(tasks)
    checks = [(f"{check.__name__}, {name}", check, name) for name in tasks for check in (prompt, reward, metrics)]
    checks += [("routing of mixed rows", routing, None), ("unknown question_type", unknown_type, None)]
    checks += [("no torch needed", no_torch, None)]
    for title, check, name in checks:
        try:
            print(f"ok    {title}: {check(tasks, name)}")
        except Unavailable as error:
            skipped += 1
            print(f"skip  {title}: {error}")
        except Exception as error:
            failures += 1
            print(f"FAIL  {title}: {type(error).__name__}: {error}")
    passed, tail = len(checks) - failures - skipped, f", {skipped} skipped" if skipped else ""
    print(f"{passed} of {len(checks)} checks passed in {time.monotonic() - started:.1f} s{tail}")
    return 1 if failures else 0


def prompt(tasks, name):
    """The picture comes first, then the template with the question."""
    messages = build_messages(_record(name, None), tasks[name])
    first, *texts = messages[-1]["content"]
    expect(first["type"] == "image", f"the user turn starts with {first}")
    text = "".join(part["text"] for part in texts)
    expect(text.count("Where to?") == 1, f"the question is not in the prompt: {text!r}")
    return repr(text if len(text) < 60 else text[:57] + "...")


def reward(tasks, name):
    """Hostile texts score 0 without errors; the task's own examples score 1 (right) and 0 (wrong)."""
    task = tasks[name]
    scores = run_self_test(task)
    record = _record(name, _example(task)[0])
    forms = _scores(0, HOSTILE, [record] * len(HOSTILE), tasks)
    expect(forms == [0.0] * len(HOSTILE), f"format of hostile texts {forms}")
    if scores is None:
        return f"format of {len(HOSTILE)} hostile texts; accuracy needs a SELF_TEST in {task.path.name}"
    values = _scores(1, [*HOSTILE, IN_FORM], [record] * (len(HOSTILE) + 1), tasks)
    expect(values == [0.0] * (len(HOSTILE) + 1), f"accuracy of hostile texts {values}")
    return f"{len(HOSTILE)} hostile texts 0, right {scores[0]:.2f}, wrong {scores[1]:.2f}"


def metrics(tasks, name):
    """Predictions of every status give finite metrics."""
    task = tasks[name]
    answer, right, wrong = _example(task)
    record = _record(name, answer)
    sol, keywords = reward_arguments(task, record, IMAGE_SIZE, PROCESSED_SIZE)
    rows = []
    for number, (completion, status) in enumerate(
        [(right, "ok"), (wrong, "ok"), ("", "parse_fail"), (None, "load_error")]
    ):
        loaded = completion is not None
        parsed = _parsed(task, completion, keywords) if loaded and task.parse_answer else None
        scores = {"format": 1.0, "accuracy": 0.5} if loaded else {"format": None, "accuracy": None}
        known = {"completion": completion, "prediction": parsed, "status": status, "answer": answer, "sol": sol}
        rows.append({**keywords, **known, **scores, "id": str(number)})
    found = summarise(rows, tasks)[name]
    expect(all(math.isfinite(value) for value in found.values()), f"a metric is not finite: {found}")
    undeclared = [name for name in found if direction(name, task.metrics) is None]
    for declared in (name for name in task.metrics if not fnmatch.filter(found, name)):
        for near in difflib.get_close_matches(declared, undeclared, n=1):
            raise CheckFailed(f"METRICS of {task.path} has {declared!r}, compute_metrics gives {near!r}: use one name")
    return f"{len(found)} metrics over {len(rows)} made-up predictions"


def _parsed(task, completion, keywords):
    try:
        return task.parse_answer(completion, **keywords)
    except Exception as error:
        raise CheckFailed(
            f"{place_of(error, task.path)}: parse_answer failed on {completion!r} ({type(error).__name__}: {error}): "
            "it must not raise on any completion; return None where there is no answer"
        ) from error


def routing(tasks, _):
    """A batch with rows of all tasks: one value per row, in order; a failed rollout abstains."""
    known = [task for task in tasks.values() if _runs(task)] * 2
    examples = [_example(task) for task in known]
    records = [_record(task.name, answer) for task, (answer, _, _) in zip(known, examples, strict=True)]
    lost = [False] * (len(known) - 1) + [True]
    values = _scores(1, [right for _, right, _ in examples], records, tasks, failed=lost)
    expect(len(values) == len(known) and values[-1] is None, f"values {values}")
    expect(all(value > 0.98 for value in values[:-1]), f"values {values}")
    return f"{len(values)} rows, {len(known) // 2} task(s)"


def unknown_type(tasks, _):
    """The error for a misspelt question_type suggests the nearest known one."""
    name = next(iter(tasks))
    try:
        get_task(name + "s", tasks)
    except ValueError as error:
        expect(repr(name) in str(error), f"{name!r} is not offered: {error}")
        return "the nearest name is offered"
    raise CheckFailed(f"{name + 's'!r} was accepted")


def no_torch(tasks, _):
    expect("torch" not in sys.modules, "torch was imported on the way")
    return "not imported"


def expect(holds: bool, message: str) -> None:
    if not holds:
        raise CheckFailed(message)


def _example(task) -> tuple:
    """(answer of the record, right completion, wrong completion); placeholders if the file has no SELF_TEST."""
    test = task.self_test
    return (test["record"]["answer"], test["right"], test["wrong"]) if test else (None, "", "")


def _runs(task) -> bool:
    try:
        return run_self_test(task) is not None
    except Unavailable:
        return False


def _scores(kind: int, completions, records, tasks, failed=None):
    """Format (0) or accuracy (1) reward of each completion, computed as in training."""
    count = len(completions)
    return task_rewards(tasks, on_reward_error="raise")[kind](
        prompts=[""] * count,
        completions=completions,
        record=[json.dumps(record) for record in records],
        image_sizes=[[IMAGE_SIZE]] * count,
        processed_sizes=[[PROCESSED_SIZE]] * count,
        failed=failed,
    )


def _record(name: str, answer) -> dict:
    return {
        "id": "smoke",
        "question_type": name,
        "question": "Where to?",
        "answer": answer,
        "images": ["smoke.png"],
        "videos": [],
        "messages": [],
        "extra": {},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
