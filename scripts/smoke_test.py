"""Checks in seconds that tasks, prompts, rewards and metrics fit together. No GPU, no weights, no torch.

    python scripts/smoke_test.py

Prints one line a check. Exit status 1 when any fails. A task of your own is checked more closely once EXAMPLES has an
entry for it.
"""

import json
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _root import use_checkout

use_checkout()

from dataset.prompts import build_messages  # noqa: E402
from model.reward_func import reward_arguments, task_rewards  # noqa: E402
from task import get_task, load_tasks, print_summary  # noqa: E402
from trainer.evaluation import summarise  # noqa: E402

IMAGE_SIZE, PROCESSED_SIZE = (640, 480), (644, 476)

# task_type -> (answer of the record, a completion that scores 1, a completion in good form that scores below 0.5)
EXAMPLES = {
    "trajectory-sharerobot": (
        [[0, 0], [320, 240], [640, 480]],
        "<think>down the diagonal</think><answer>[[0, 0], [322, 238], [644, 476]]</answer>",
        "<think>up the diagonal</think><answer>[[644, 476], [322, 238], [0, 0]]</answer>",
    ),
}

HOSTILE = [
    "",
    " " * 100_000,
    "<answer>" * 16_000,
    "<think>" * 16_000,
    "[1,2,3," * 20_000,
    "<think>a</think><answer></answer>",
    "<think>a</think><answer>[[NaN, 1e999], [1, 2]]</answer>",
    "<think>a</think><answer>1</answer><think>b</think><answer>2</answer>",
    "\x00\ud800 <think>\u202e</think",
]


class CheckFailed(Exception):
    pass


def main() -> int:
    started, failures = time.monotonic(), 0
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
        except Exception as error:
            failures += 1
            print(f"FAIL  {title}: {type(error).__name__}: {error}")
    print(f"{len(checks) - failures} of {len(checks)} checks passed in {time.monotonic() - started:.1f} s")
    return 1 if failures else 0


def prompt(tasks, name):
    """The picture comes first, then the template with the question in it."""
    messages = build_messages(_record(name, None), tasks[name])
    first, *texts = messages[-1]["content"]
    expect(first["type"] == "image", f"the user turn starts with {first}")
    text = "".join(part["text"] for part in texts)
    expect(text.count("Where to?") == 1, f"the question is not in the prompt: {text!r}")
    return repr(text if len(text) < 60 else text[:57] + "...")


def reward(tasks, name):
    """Hostile texts score without a fault; where an example is known, right scores 1 and wrong below 0.5."""
    completions = HOSTILE + list(EXAMPLES.get(name, ("",))[1:])
    record = _record(name, EXAMPLES[name][0] if name in EXAMPLES else None)
    forms = _scores(0, completions, [record] * len(completions), tasks)
    if name not in EXAMPLES:
        return f"format of {len(HOSTILE)} hostile texts; accuracy needs an entry in EXAMPLES"
    values = _scores(1, completions, [record] * len(completions), tasks)
    expect(forms == [0.0] * len(HOSTILE) + [1.0, 1.0], f"format rewards {forms}")
    expect(values[: len(HOSTILE)] == [0.0] * len(HOSTILE), f"accuracy of hostile texts {values}")
    expect(values[-2] > 0.99 and values[-1] < 0.5, f"accuracy of the right and the wrong answer {values[-2:]}")
    return f"{len(HOSTILE)} hostile texts 0, right {values[-2]:.2f}, wrong {values[-1]:.2f}"


def metrics(tasks, name):
    """Predictions of every status give finite metrics."""
    task = tasks[name]
    answer, right, wrong = EXAMPLES.get(name, (None, "", ""))
    record = _record(name, answer)
    sol, keywords = reward_arguments(task, record, IMAGE_SIZE, PROCESSED_SIZE)
    rows = []
    for number, (completion, status) in enumerate(
        [(right, "ok"), (wrong, "ok"), ("", "parse_fail"), (None, "load_error")]
    ):
        loaded = completion is not None
        parsed = task.parse_answer(completion, **keywords) if loaded and task.parse_answer else None
        scores = {"format": 1.0, "accuracy": 0.5} if loaded else {"format": None, "accuracy": None}
        known = {"completion": completion, "prediction": parsed, "status": status, "answer": answer, "sol": sol}
        rows.append({**keywords, **known, **scores, "id": str(number)})
    if name not in EXAMPLES:
        rows = rows[-1:]  # the others hold no real answer
    found = summarise(rows, tasks)[name]
    expect(all(math.isfinite(value) for value in found.values()), f"a metric is not finite: {found}")
    return f"{len(found)} metrics over {len(rows)} made-up predictions"


def routing(tasks, _):
    """Rows of all tasks in one batch: one value each, in order; a lost rollout abstains."""
    names = [name for name in tasks if name in EXAMPLES] * 2
    completions = [EXAMPLES[name][1] for name in names]
    records = [_record(name, EXAMPLES[name][0]) for name in names]
    values = _scores(1, completions, records, tasks, failed=[False] * (len(names) - 1) + [True])
    expect(len(values) == len(names) and values[-1] is None, f"values {values}")
    expect(all(value > 0.99 for value in values[:-1]), f"values {values}")
    return f"{len(values)} rows, {len(set(names))} task(s)"


def unknown_type(tasks, _):
    """A misspelt question_type is answered with the nearest known one."""
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


def _scores(kind: int, completions, records, tasks, failed=None):
    """Format (0) or accuracy (1) of each completion as the trainer gets it."""
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
    sys.exit(main())
