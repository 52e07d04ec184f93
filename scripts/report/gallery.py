"""The predictions of an evaluation as items of the page: texts, scores, and shapes to draw on the picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from report.lines import number, read_lines, size, text
from report.pictures import Pictures
from report.shapes import shapes_in
from report.sources import prediction_files

MOST_ITEMS = 20_000
LONGEST_TEXT = 6_000  # characters of a completion or question
LONGEST_ANSWER = 800
MOST_SAMPLES = 16  # per record


def read_predictions(folder: Path) -> tuple[list[dict], int]:
    """(predictions, number of invalid or surplus lines); of two lines with the same id the later counts."""
    found = [read_lines(file) for file in prediction_files(folder)]
    kept = {text(entry.get("id"), 300): entry for entries, _ in found for entry in entries}
    return list(kept.values())[:MOST_ITEMS], sum(faults for _, faults in found) + max(0, len(kept) - MOST_ITEMS)


def items_of(predictions: list[dict], tasks: dict, pictures: Pictures) -> list[dict]:
    """What the page shows of each prediction (page_files/gallery.js reads these keys)."""
    return [_item(prediction, tasks, pictures) for prediction in predictions]


def first_picture(record) -> str | None:
    """Path of the first picture of a record; None if it has none or is damaged."""
    images = record.get("images") if isinstance(record, dict) else None
    return images[0] if isinstance(images, list) and images and isinstance(images[0], str) else None


def counts_of(predictions: list[dict]) -> dict[str, int]:
    """Items by status, most frequent first."""
    return dict(Counter(text(p.get("status") or "unknown", 40) for p in predictions).most_common())


def _item(prediction: dict, tasks: dict, pictures: Pictures) -> dict:
    record = prediction.get("record") if isinstance(prediction.get("record"), dict) else {}
    task = text(prediction.get("question_type"), 80)
    frame = tasks[task].config["frame"] if task in tasks else "none"
    sizes = (size(prediction.get("image_size")), size(prediction.get("processed_size")))
    images = record.get("images") if isinstance(record.get("images"), list) else []
    samples = prediction.get("samples") if isinstance(prediction.get("samples"), list) else []
    samples = [sample for sample in samples if isinstance(sample, dict)][:MOST_SAMPLES]
    answers = [sample.get("prediction") for sample in samples] or [prediction.get("prediction")]
    # the record's own coordinates are pixels of the original picture, whichever frame the model uses
    places = {"true": shapes_in(prediction.get("answer"), "none" if frame == "none" else "original", *sizes)}
    places["predicted"] = [shape for answer in answers for shape in shapes_in(answer, frame, *sizes)]
    if sizes[0] is None:
        places = {"true": [], "predicted": []}
    return {
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
        "size": sizes[0],
        "samples": [_sample(sample) for sample in samples],
        **places,
    }


def _sample(sample: dict) -> dict:
    return {
        "completion": text(sample.get("completion"), LONGEST_TEXT // 4),
        "accuracy": number(sample.get("accuracy")),
        "status": text(sample.get("status") or "unknown", 40),
    }
