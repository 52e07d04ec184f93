"""A need in words ("I am thirsty"), and the object that meets it: a place in the picture, or one of several choices.

Data: any record in one of three forms. It fits data made for demand-driven navigation (arXiv 2309.08138: needs, and the
object classes that meet them) once the objects are annotated in pictures or listed as choices.

- boxes: the answer is one or more boxes, each an object that meets the need (any of them counts);
- points: the answer is {"point_2d": [x, y]}, or a list of these;
- choices: the record has "choices", a list of texts, and the answer is the letter of one (A is the first) or its text.

The question must list the choices with their letters: the model sees nothing else.

Reward for a predicted point: exp(-gap / (0.1 * diagonal)), where gap is the distance to the nearest true box or point
on the plane of the model's coordinates (the processed picture, or 0 to 1000), 0 inside a box. For a predicted box: its
IoU with the best-matching true box, or, if the truth is points, the score of its centre; a box without area (swapped
corners) scores 0. Several points or boxes are not an answer. For choices: 1 for the right one, else 0; naming several
is not an answer. Metric `success`: the point, or the centre of the box, lies in a true box (within 0.05 * diagonal of a
true point), or the choice is right.
"""

import math
from statistics import fmean

from task.errors import UserError
from task.parsing.answers import MAX_ANSWER_CHARS, answer_text, parse_boxes, parse_points, split_completion
from task.parsing.text import CHOICES, parse_choice, same_words, unmarked
from task.processing_utils import scale_points
from task.rewards.boxes import (
    are_pixels,
    area,
    centre,
    distance,
    iou,
    move_objects,
    plane_size,
    scale_suspect,
    true_objects,
)

REWARD_SCALE = 0.1  # a gap of a tenth of the diagonal scores exp(-1)
NEAR_A_POINT = 0.05  # of the diagonal

TASK_CONFIG = {
    "task_type": "demand-prediction",
    "grpo_template": (
        "{Question} First think inside <think> </think>, then say what meets this need inside <answer> </answer>: "
        "a point on it as [x, y] {Coordinates}, or the letter where choices are given."
    ),
    "description": "the object that meets a need: a point or box in the picture, or a choice",
    "input_format": "a need in words, with a picture or with lettered choices",
    "output_format": "[x, y], or [x1, y1, x2, y2], or a letter",
    "frame": "processed",
}

SELF_TEST = {
    "record": {
        "question": "I am thirsty.",
        "answer": [{"bbox_2d": [320, 240, 400, 300], "label": "cup"}],
    },
    "right": "<think>a cup</think><answer>[360, 270]</answer>",
    "wrong": "<think>a wall</think><answer>[0, 0, 40, 40]</answer>",
}

METRICS = {"success": "higher", "parse_failure_rate": "lower", "scale_suspect": "lower"}


def format_reward(completion, sol, **kw):
    """1.0 for exactly one thought and one answer block, the answer one point, box or choice; else 0.0."""
    parts = split_completion(completion, kw.get("thought_end", "</think>"))
    return float(parts is not None and _prediction_in(parts[1], _choices(kw)) is not None)


def accuracy_reward(completion, sol, **kw):
    """(score in [0, 1], {"success", "parse_fail", "scale_suspect": 0 or 1}); None without a true answer."""
    if sol is None:
        return None
    choices = _choices(kw)
    truth = _true_choice(sol, choices, kw) if choices else _true_places(sol, kw)
    size = None if choices else plane_size(TASK_CONFIG["frame"], kw)
    prediction = parse_answer(completion, **kw)
    if prediction is None:
        return 0.0, {"success": 0, "parse_fail": 1, "scale_suspect": 0}
    score, success = _scored(prediction, truth, size)
    suspect = size is not None and scale_suspect([prediction], size)
    return score, {"success": int(success), "parse_fail": 0, "scale_suspect": int(suspect)}


def process_answer(answer, size_from, size_to):
    """Rescales boxes or points from one picture size to another; the letter or text of a choice is left as it is."""
    if isinstance(answer, str):
        return answer
    if _holds_points(answer):
        return [{"point_2d": point} for point in scale_points(_points(answer), size_from, size_to)]
    return move_objects(answer, size_from, size_to)


def parse_answer(completion, **kw):
    """The predicted point [x, y] or box [x1, y1, x2, y2] in the processed picture, or the choice's letter; or None."""
    return _prediction_in(answer_text(completion, kw.get("thought_end", "</think>")), _choices(kw))


def compute_metrics(predictions, **kw):
    """success and parse_failure_rate: means over the predictions with a true answer. scale_suspect is a count."""
    rows = [row for row in predictions if row["status"] != "load_error" and row["sol"] is not None]
    if not rows:
        return {}
    successes, suspects = [], 0
    for row in rows:
        choices = _choices(row)
        truth = _true_choice(row["sol"], choices, row) if choices else _true_places(row["sol"], row)
        prediction, size = row["prediction"], None if choices else plane_size(TASK_CONFIG["frame"], row)
        successes.append(prediction is not None and _scored(prediction, truth, size)[1])
        suspects += bool(prediction and not choices and scale_suspect([prediction], size))
    return {
        "success": fmean(successes),
        "parse_failure_rate": fmean(row["prediction"] is None for row in rows),
        "scale_suspect": float(suspects),
    }


def _scored(prediction, truth, size) -> tuple[float, bool]:
    """(reward, success) of a readable prediction."""
    if isinstance(prediction, str):
        return float(prediction == truth), prediction == truth
    boxes, points = truth
    if len(prediction) == 4 and area(prediction) == 0.0:
        return 0.0, False
    diagonal = math.hypot(*size)
    point = prediction if len(prediction) == 2 else centre(prediction)
    inside = any(distance(point, box) == 0.0 for box in boxes)
    gap = min([distance(point, box) for box in boxes] + [math.dist(point, one) for one in points])
    success = inside or any(math.dist(point, one) <= NEAR_A_POINT * diagonal for one in points)
    if len(prediction) == 4 and boxes:
        return max(iou(prediction, box) for box in boxes), success
    return math.exp(-gap / (REWARD_SCALE * diagonal)), success


def _prediction_in(answer, choices):
    if choices:
        return _choice_in(answer, choices)
    for parse in (parse_points, parse_boxes):
        shapes = parse(answer)
        if shapes and len(shapes) == 1 and are_pixels(shapes):
            return shapes[0]
    return None


def _choice_in(answer, choices) -> str | None:
    """The letter of the one choice an answer names, by letter, by text, or by both where they agree.

    >>> _choice_in("(B) A lamp.", ["a cup", "a lamp"])
    'B'
    """
    if answer is None or len(answer) > MAX_ANSWER_CHARS:
        return None
    answer = unmarked(answer)
    same = [CHOICES[number] for number, choice in enumerate(choices) if same_words(answer, choice)]
    if len(same) == 1:
        return same[0]
    letter, words = parse_choice(answer), None
    if letter is None:
        first, _, words = answer.strip().partition(" ")
        letter = parse_choice(first)
    if letter is None or CHOICES.index(letter) >= len(choices):
        return None
    return letter if words is None or same_words(words, choices[CHOICES.index(letter)]) else None


def _choices(kw) -> list[str] | None:
    choices = ((kw.get("record") or {}).get("extra") or {}).get("choices")
    if choices is None:
        return None
    good = isinstance(choices, list) and 2 <= len(choices) <= len(CHOICES)
    if not good or not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise UserError(f"record {kw.get('id')}: choices {choices!r} must be a list of 2 to {len(CHOICES)} texts.")
    return choices


def _true_choice(sol, choices, kw) -> str:
    letter = _choice_in(sol, choices) if isinstance(sol, str) else None
    if letter is None:
        raise UserError(f"record {kw.get('id')}: answer {sol!r} must be the letter or the text of one choice.")
    return letter


def _true_places(sol, kw) -> tuple[list, list]:
    """(boxes, points), one of the two empty."""
    if _holds_points(sol):
        return [], scale_points(_points(sol), (1, 1), (1, 1))  # for its checks
    boxes = [one["bbox_2d"] for one in true_objects(sol)]
    if not boxes:
        raise UserError(f"record {kw.get('id')}: the answer holds no box or point: give at least one.")
    return boxes, []


def _holds_points(answer) -> bool:
    one = answer[0] if isinstance(answer, list) and answer else answer
    return isinstance(one, dict) and "point_2d" in one


def _points(answer) -> list:
    """The points of an answer in this form; None for each item that is not a point."""
    items = answer if isinstance(answer, list) else [answer]
    return [one.get("point_2d") if isinstance(one, dict) else None for one in items]
