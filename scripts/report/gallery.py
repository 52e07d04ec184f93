"""The predictions of an evaluation as items of the page: texts, scores, and shapes to draw over the picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from report.lines import number, read_lines, size, text
from report.pictures import Pictures
from report.shapes import shapes_in

MOST_ITEMS = 20_000
LONGEST_TEXT = 6_000  # characters of a completion or question
LONGEST_ANSWER = 800
ONE_STATUS = "ok"


def read_predictions(folder: Path) -> tuple[list[dict], int]:
    """(predictions, lines that are none); of two lines of one id and sample the later counts."""
    entries, faults = read_lines(folder / "predictions.jsonl")
    kept = {(text(e.get("id"), 300), text(e.get("sample"), 20)): e for e in entries}
    return list(kept.values())[:MOST_ITEMS], faults + max(0, len(kept) - MOST_ITEMS)


def items_of(predictions: list[dict], tasks: dict, pictures: Pictures) -> list[dict]:
    """What the page shows of each prediction (page_files/gallery.js reads these keys)."""
    return [_item(prediction, tasks, pictures) for prediction in predictions]


def first_picture(record) -> str | None:
    """Path of the first picture of a record, of any damaged form."""
    images = record.get("images") if isinstance(record, dict) else None
    return images[0] if isinstance(images, list) and images and isinstance(images[0], str) else None


def counts_of(predictions: list[dict]) -> dict[str, int]:
    """Items by status, most frequent first."""
    return dict(Counter(text(p.get("status") or "unknown", 40) for p in predictions).most_common())


def _item(prediction: dict, tasks: dict, pictures: Pictures) -> dict:
    record = prediction.get("record") if isinstance(prediction.get("record"), dict) else {}
    task = text(prediction.get("question_type"), 80)
    frame = tasks[task].config["frame"] if task in tasks else "none"
    picture_size, processed = size(prediction.get("image_size")), size(prediction.get("processed_size"))
    images = record.get("images") if isinstance(record.get("images"), list) else []
    item = {
        "id": text(prediction.get("id"), 200),
        "task": task,
        "status": text(prediction.get("status") or "unknown", 40),
        "accuracy": number(prediction.get("accuracy")),
        "format": number(prediction.get("format")),
        "question": text(record.get("question"), LONGEST_TEXT),
        "completion": text(prediction.get("completion"), LONGEST_TEXT),
        "prediction": text(prediction.get("prediction"), LONGEST_ANSWER),
        "truth": text(prediction.get("answer"), LONGEST_ANSWER),
        "error": text(prediction.get("error"), LONGEST_ANSWER),
        "picture": pictures.add(first_picture(record)),
        "pictures": len(images),
        "size": picture_size,
        "predicted": shapes_in(prediction.get("prediction"), frame, picture_size, processed) if picture_size else [],
        # the record's own numbers are pixels of the original picture, whatever frame the model writes
        "true": shapes_in(prediction.get("answer"), "none" if frame == "none" else "original", picture_size, processed)
        if picture_size
        else [],
    }
    return item | ({"sample": text(prediction["sample"], 20)} if "sample" in prediction else {})
