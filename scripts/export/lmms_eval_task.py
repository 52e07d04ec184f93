"""Functions of lmms-eval's tasks in this folder: prompts with pictures, and the scores of GRPO-MA."""

import json
import threading
from functools import cache
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent
ONE_AT_A_TIME = threading.Lock()  # lmms-eval scores in threads, and tasks may not be made for that


@cache
def exported():
    try:
        from trainer.evaluation.exported import ExportedTests
    except ImportError as error:
        raise ImportError(
            f"the tasks in {HERE} are scored by GRPO-MA, which cannot be imported ({error}): put its checkout on "
            "PYTHONPATH, or install it in this environment"
        ) from error
    return ExportedTests(HERE)


@cache
def check():
    exported().check()


def doc_to_visual(doc):
    return [Image.open(HERE / path).convert("RGB") for path in doc["pictures"]]


def doc_to_text(doc, lmms_eval_specific_kwargs=None):
    check()  # lmms-eval reads this before the model is asked
    return doc["text"]


def doc_to_target(doc):
    return doc["target"]


def doc_to_messages(doc, lmms_eval_specific_kwargs=None):
    pictures = doc_to_visual(doc)

    def content(part):
        if part["type"] == "image":
            return {"type": "image", "url": pictures[part["index"]]}
        return {"type": "text", "text": part["text"]}

    messages = json.loads(doc["row"])["record"]["messages"]
    return [{"role": one["role"], "content": list(map(content, one["content"]))} for one in messages]


def process_results(doc, results):
    with ONE_AT_A_TIME:
        return exported().scores(json.loads(doc["row"]), results[0])


def aggregate(scores):
    return exported().aggregate(scores)
