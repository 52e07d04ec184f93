"""Object detection: one box for a described object, all boxes of the requested classes, or none.

Data: RefCOCO, RefCOCO+ and RefCOCOg (Apache-2.0 code, annotations on COCO pictures), COCO (annotations CC BY 4.0, the
pictures under their owners' Flickr terms), and any record whose answer is boxes. The model writes its own coordinates:
pixels of the processed picture (Qwen2.5-VL), or 0 to 1000 (Qwen3-VL). The answer [] means that the picture shows no
such object.

Reward: boxes are matched one to one so that the summed intersection over union is largest (Kuhn, 1955: assignment);
if the true objects have labels, only equal labels match. The sum is divided by the larger of the two counts, so
missing, extra and duplicate boxes all lower the score. If there is nothing to find, [] scores 1, anything else 0.

Metrics: that score; the share of single objects found at IoU 0.5 (RefCOCO's accuracy); precision, recall and F1 of a
matching with as many pairs of IoU 0.5 as possible; and COCO's average precision. The model gives no confidences, so
every box has confidence 1; task/rewards/average_precision.py explains the consequences.
"""

from statistics import fmean

from task.parsing.answers import answer_text, normal_text, parse_boxes, parse_value, split_completion
from task.rewards.average_precision import average_precision, matched_pairs
from task.rewards.boxes import are_pixels, iou, move_objects, plane_size, scale_suspect, true_objects

MAX_OBJECTS = 100  # COCO's own limit of detections per picture; a longer list is not an answer

TASK_CONFIG = {
    "task_type": "object-detection",
    "grpo_template": (
        "{Question} First think inside <think> </think>, then give the boxes inside <answer> </answer> as "
        '[{"bbox_2d": [x1, y1, x2, y2], "label": "name"}, ...] {Coordinates}, or [] if there is none.'
    ),
    "description": "boxes with labels, matched one to one, scored by overlap",
    "input_format": "one picture and what to find in words",
    "output_format": '[{"bbox_2d": [x1, y1, x2, y2], "label": "name"}, ...], or bare boxes if labels do not count',
    "frame": "processed",
}

SELF_TEST = {
    "record": {
        "question": "Find every cup and every lamp.",
        "answer": [
            {"bbox_2d": [160, 120, 320, 240], "label": "cup"},
            {"bbox_2d": [400, 240, 480, 360], "label": "lamp"},
        ],
    },
    "right": '<think>two</think><answer>[{"bbox_2d": [402.5, 238, 483, 357], "label": "lamp"}, '
    '{"bbox_2d": [161, 119, 322, 238], "label": "cup"}]</answer>',
    "wrong": "<think>none</think><answer>[]</answer>",
}

METRICS = {
    **dict.fromkeys(
        ("match_score", "precision_50", "recall_50", "f1_50", "accuracy_50", "empty_accuracy", "ap", "ap_50"), "higher"
    ),
    **dict.fromkeys(("parse_failure_rate", "scale_suspect"), "lower"),
}


def format_reward(completion, sol, **kw):
    """1.0 for exactly one thought and one answer block, the answer 0 to 100 boxes; else 0.0."""
    parts = split_completion(completion, kw.get("thought_end", "</think>"))
    return float(parts is not None and _objects_in(parts[1]) is not None)


def accuracy_reward(completion, sol, **kw):
    """(score in [0, 1], {"boxes": how many, "parse_fail", "scale_suspect": 0 or 1}); None without a true answer."""
    if sol is None:
        return None
    truth, size = true_objects(sol), plane_size(TASK_CONFIG["frame"], kw)
    found = parse_answer(completion, **kw)
    if found is None:
        return 0.0, {"boxes": 0, "parse_fail": 1, "scale_suspect": 0}
    suspect = scale_suspect([one["bbox_2d"] for one in found], size)
    return match_score(found, truth), {"boxes": len(found), "parse_fail": 0, "scale_suspect": int(suspect)}


def process_answer(answer, size_from, size_to):
    """Moves the true boxes, in any form of `true_objects`, between two picture sizes."""
    return move_objects(answer, size_from, size_to)


def parse_answer(completion, **kw):
    """The predicted objects [{"bbox_2d": [x1, y1, x2, y2], "label": text or None}, ...], or None. [] is an answer."""
    return _objects_in(answer_text(completion, kw.get("thought_end", "</think>")))


def match_score(found, truth) -> float:
    """Summed overlap of the best one-to-one matching, over the larger number of objects; 1.0 if both are empty."""
    if not found and not truth:
        return 1.0
    return sum(matched_overlaps(found, truth)) / max(len(found), len(truth))


def matched_overlaps(found, truth) -> list[float]:
    """The IoU of each matched pair; every object is in at most one pair."""
    if not found or not truth:
        return []
    from scipy.optimize import linear_sum_assignment

    table = _table(found, truth)
    return [table[i][j] for i, j in zip(*linear_sum_assignment(table, maximize=True), strict=True)]


def compute_metrics(predictions, **kw):
    """Means over the predictions with a true answer; an unreadable answer counts as no boxes. scale_suspect is a count.

    Metrics with nothing to measure are left out: accuracy_50 without single objects, empty_accuracy without empty
    pictures, ap and ap_50 without any true box.
    """
    rows = [row for row in predictions if row["status"] != "load_error" and row["sol"] is not None]
    if not rows:
        return {}
    pairs = [(row["prediction"], true_objects(row["sol"])) for row in rows]
    overlaps = [matched_overlaps(found or [], truth) for found, truth in pairs]
    hits = sum(len(matched_pairs(_table(found or [], truth), 0.5)) for found, truth in pairs)
    predicted, true = sum(len(found or []) for found, _ in pairs), sum(len(truth) for _, truth in pairs)
    singles = [max(o, default=0.0) for o, (found, truth) in zip(overlaps, pairs, strict=True) if len(truth) == 1]
    empty = [found == [] for found, truth in pairs if not truth]
    suspects = [
        found and scale_suspect([one["bbox_2d"] for one in found], plane_size(TASK_CONFIG["frame"], row))
        for (found, _), row in zip(pairs, rows, strict=True)
    ]
    metrics = {
        "match_score": fmean(0.0 if found is None else match_score(found, truth) for found, truth in pairs),
        "precision_50": hits / predicted if predicted else 0.0,
        "recall_50": hits / true if true else 0.0,
        "f1_50": 2 * hits / (predicted + true) if predicted + true else 1.0,
        "parse_failure_rate": fmean(found is None for found, _ in pairs),
        "scale_suspect": float(sum(map(bool, suspects))),
    }
    metrics |= {"accuracy_50": fmean(overlap >= 0.5 for overlap in singles)} if singles else {}
    metrics |= {"empty_accuracy": fmean(empty)} if empty else {}
    if true:
        curve = average_precision([_classed(_named_as(found or [], truth), truth) for found, truth in pairs])
        metrics |= {"ap": float(curve.mean()), "ap_50": float(curve[0])}
    return metrics


def _classed(found, truth) -> tuple[list, list]:
    """A picture as `average_precision` takes it, every box with confidence 1."""
    return [(_name(one), one["bbox_2d"], 1.0) for one in found], [(_name(one), one["bbox_2d"]) for one in truth]


def _named_as(found, truth) -> list[dict]:
    """The predictions, without their labels if the true objects have none, so that labels do not count."""
    without = truth and all(one["label"] is None for one in truth)
    return [one | {"label": None} for one in found] if without else found


def _name(one) -> str:
    return normal_text(one["label"]) if one["label"] else ""


def _table(found, truth) -> list[list[float]]:
    return [[_overlap(one, true) for true in truth] for one in found]


def _overlap(one, true) -> float:
    if true["label"] is not None and _name(one) != _name(true):
        return 0.0
    return iou(one["bbox_2d"], true["bbox_2d"])


def _objects_in(answer):
    boxes = parse_boxes(answer)
    if boxes is None or len(boxes) > MAX_OBJECTS or not are_pixels(boxes):
        return None
    value = parse_value(answer)
    items = value if isinstance(value, list) and len(value) == len(boxes) else [value]
    labels = [item.get("label") if isinstance(item, dict) else None for item in items]
    labels += [None] * (len(boxes) - len(labels))
    return [
        {"bbox_2d": box, "label": label if isinstance(label, str) else None}
        for box, label in zip(boxes, labels, strict=True)
    ]
