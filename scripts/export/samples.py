"""Predictions of eval.py in the form in which lmms-eval (0.7.3) writes its samples with --log_samples."""

import json
import sys
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from exported_records import task_name, text_of

from scripts.eval.compare import read_predictions
from task.errors import UserError
from task.task_loader import Task, get_task, load_tasks
from trainer.evaluation.exported import metrics_of_one
from trainer.evaluation.item_metrics import UNSCORED

NO_DOCUMENT = sha256(b"null").hexdigest()  # lmms-eval's hash of a document, which it takes before it has one


def write_samples(folder: Path, out: Path) -> None:
    """Writes DATE_samples_TASK.jsonl of each task_type; records without a completion are left out and counted."""
    predictions = list(read_predictions(str(folder)).values())
    several = next((one["id"] for one in predictions if one.get("samples")), None)
    if several is not None:
        raise UserError(
            f"{folder}: record {several!r} has several completions, and a sample of lmms-eval holds one: evaluate with "
            "--num_samples 1."
        )
    kept = [one for one in predictions if one["status"] not in UNSCORED]
    if len(kept) < len(predictions):
        print(f"{len(predictions) - len(kept)} records without a completion are left out", file=sys.stderr)
    if not kept:
        raise UserError(f"{folder}: no record has a completion: evaluate again.")
    tasks, date = load_tasks(**settings_of(folder)), datetime.now().strftime("%Y%m%d_%H%M%S")
    for task_type in dict.fromkeys(one["question_type"] for one in kept):
        task, own = get_task(task_type, tasks), [one for one in kept if one["question_type"] == task_type]
        lines = [json.dumps(sample(i, one, task), ensure_ascii=False) for i, one in enumerate(own)]
        file = out / f"{date}_samples_{task_name(task_type)}.jsonl"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")


def settings_of(folder: Path) -> dict:
    """The tags and the coordinate frame of an evaluation. UserError if its settings.json cannot be read."""
    folder = folder if folder.is_dir() else folder.parent
    try:
        settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        return {name: settings[name] for name in ("thought_end", "coordinate_frame")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder} has no settings.json of eval.py ({error}): name the output_dir of an evaluation."
        ) from error


def sample(index: int, prediction: dict, task: Task) -> dict:
    answer = prediction["answer"]
    return {
        "doc_id": index,
        "target": answer if isinstance(answer, str) else json.dumps(answer),
        "filtered_resps": prediction["completion"].strip(),
        "token_counts": [{"output_tokens": prediction["tokens"]}],
        "doc_hash": NO_DOCUMENT,
        **({"input_media": prediction["record"]["images"]} if prediction["record"]["images"] else {}),
        **metrics_of_one(prediction, task),
        "input": text_of(prediction["record"]),
    }
