"""Questions about the text in a picture: TextVQA's and OCR-VQA's own files."""

from pathlib import Path

from converters.converted import Converted, need, others, text
from converters.open_questions import golds
from converters.sources import load, read_json
from task.errors import UserError


def read_textvqa(source, options):
    """{"data": [{"question_id", "question", "image_id", "answers": [ten texts]}]}"""
    return read_json(source, options)


def textvqa(raw, options):
    answers = need(raw, "answers")
    references = golds(answers)
    name = text(raw, "image_id")
    record = {"image": name if Path(name).suffix else f"{name}.jpg", "question": text(raw, "question")}
    record |= {"id": f"textvqa-{need(raw, 'question_id')}", "question_type": "ocr-vqa", "answer": references}
    changes = ["equal references counted once"] if len(references) < len(answers) else []
    return [Converted(record, changes, rest=others(raw, "question_id", "question", "image_id", "answers"))]


def read_ocrvqa(source, options):
    """{book id: {"imageURL", "questions": [...], "answers": [...], "split": 1 (train), 2 or 3}}"""
    content = load(source)
    if not isinstance(content, dict):
        raise UserError(f"{source} is not OCR-VQA's file: it must be one JSON object with one key per book.")
    return [
        (f"{source} book {key}", value | {"key": key} if isinstance(value, dict) else value)
        for key, value in content.items()
    ]


def ocrvqa(raw, options):
    """One record per question."""
    questions, answers = need(raw, "questions"), need(raw, "answers")
    if not isinstance(questions, list) or not isinstance(answers, list):
        raise UserError("questions and answers must be lists")
    if len(questions) != len(answers):
        raise UserError(f"{len(questions)} questions have {len(answers)} answers")
    image = raw["key"] + (Path(str(raw.get("imageURL", ""))).suffix or ".jpg")
    return [
        Converted(
            {
                "id": f"{raw['key']}-{number}",
                "image": image,
                "question": question,
                "question_type": "ocr-vqa",
                "answer": answer,
                "split": raw.get("split"),
            },
            rest=others(raw, "key", "imageURL", "questions", "answers", "split"),
        )
        for number, (question, answer) in enumerate(zip(questions, answers, strict=True))
    ]
