"""What the tests of the tasks share: completions, and records scored as training and evaluation score them."""

import json
import random

from task.rewards.router import reward_arguments
from task.task_loader import load_tasks

TASKS = load_tasks()
SIZES = ((640, 480), (644, 476))  # a picture, and what the processor makes of it
DEGENERATE = ["<answer>" * 16_000, "<think>" * 16_000, "[1,2,3," * 20_000, " " * 100_000, "", "I do not know"]
ANSWERS = {  # what the records of a task hold
    "trajectory-sharerobot": [[1, 2], [30, 40]],
    "affordance-sharerobot": [1, 2, 30, 40],
    "object-detection": [{"bbox_2d": [1, 2, 30, 40], "label": "cup"}, {"bbox_2d": [50, 60, 90, 90], "label": "lamp"}],
    "demand-prediction": [[1, 2, 30, 40]],
    "ocr-vqa": ["10:30 AM", "half past ten"],
}
PIECES = ["<answer>", "</answer>", "<think>", "</think>", "```", "NaN", "1e999", "null", "[]", "\u0f73", "\ud800"]


def said(answer, thought="t") -> str:
    return f"<think>{thought}</think><answer>{answer if isinstance(answer, str) else json.dumps(answer)}</answer>"


def arguments(name: str, answer, sizes=SIZES, **extra) -> tuple:
    """(sol, keywords) of a record of the task `name`; `extra` are the record's other keys."""
    record = {"id": "r7", "question_type": name, "question": "What?", "answer": answer, "extra": extra}
    return reward_arguments(TASKS[name], record, *sizes)


def scored(name: str, completion: str, answer, sizes=SIZES, **extra) -> tuple[float, float, dict]:
    """(format reward, accuracy reward, what it logs)."""
    sol, keywords = arguments(name, answer, sizes, **extra)
    score, logged = TASKS[name].accuracy_reward(completion, sol, **keywords)
    return TASKS[name].format_reward(completion, sol, **keywords), score, logged


def prediction(name: str, completion: str | None, answer, sizes=SIZES, **extra) -> dict:
    """A prediction as the evaluation makes it; completion None: the picture did not load."""
    if completion is None:
        lost = {"completion": None, "prediction": None, "sol": None, "format": None, "accuracy": None}
        keywords = arguments(name, answer, (None, None), **extra)[1]
        return {**keywords, **lost, "answer": answer, "status": "load_error"}
    sol, keywords = arguments(name, answer, sizes, **extra)
    form, score, _ = scored(name, completion, answer, sizes, **extra)
    parsed = TASKS[name].parse_answer(completion, **keywords)
    status = "ok" if parsed is not None else "parse_fail"
    known = {"completion": completion, "prediction": parsed, "answer": answer, "sol": sol, "status": status}
    return {**keywords, **known, "format": form, "accuracy": score}


def metrics(name: str, *predictions: dict) -> dict:
    return TASKS[name].compute_metrics(list(predictions))


def mutated(good: str, draw: random.Random, alphabet="0123456789.-e[]{}<>/, \n'\"(abcd") -> str:
    """A completion with one to four places changed: characters replaced, doubled, cut out, or pieces of tags put in."""
    text = list(good)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(text))
        kind = draw.randrange(4)
        text[at] = [draw.choice(alphabet), text[at] * 2, "", draw.choice(PIECES) + text[at]][kind]
    return "".join(text)
