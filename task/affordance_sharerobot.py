"""Where to grasp: the box of the part of an object that an action touches.

Data: ShareRobot's affordance part (BAAI/ShareRobot, Apache-2.0: x, y, width, height in pixels of the original picture),
and any record with a box. If there are several true boxes, any of them counts. The model writes the two corners
in its own coordinates: pixels of the processed picture (Qwen2.5-VL), or 0 to 1000 (Qwen3-VL).

Reward: intersection over union (IoU) with the best-matching true box; more than one box is not an answer. Metrics: mean
IoU, the share of predictions with an IoU of at least 0.5, and the share whose centre lies in a true box.
"""

from statistics import fmean

from task.errors import UserError
from task.parsing.answers import answer_text, parse_boxes, split_completion
from task.rewards.boxes import are_pixels, centre_hit, iou, move_objects, plane_size, scale_suspect, true_objects

TASK_CONFIG = {
    "task_type": "affordance-sharerobot",
    "grpo_template": (
        "{Question} First think inside <think> </think>, then give the area to touch inside <answer> </answer> "
        "as [x1, y1, x2, y2] {Coordinates}."
    ),
    "description": "the box of the area that an action touches, scored by its IoU with the true one",
    "input_format": "one picture and an instruction in words",
    "output_format": "[x1, y1, x2, y2], two corners",
    "frame": "processed",
}

SELF_TEST = {
    "record": {
        "question": "Open the drawer.",
        "answer": {"x": 160, "y": 120, "width": 320, "height": 240},
    },
    "right": "<think>the handle</think><answer>[161, 119, 483, 357]</answer>",
    "wrong": "<think>the wall</think><answer>[0, 0, 100, 100]</answer>",
}

METRICS = {
    **dict.fromkeys(("iou", "iou_50", "centre_hit"), "higher"),
    **dict.fromkeys(("parse_failure_rate", "scale_suspect"), "lower"),
}


def format_reward(completion, sol, **kw):
    """1.0 for exactly one thought and one answer block, the answer one box; else 0.0."""
    parts = split_completion(completion, kw.get("thought_end", "</think>"))
    return float(parts is not None and _box_in(parts[1]) is not None)


def accuracy_reward(completion, sol, **kw):
    """(IoU in [0, 1], {"centre_hit", "parse_fail", "scale_suspect": 0 or 1}); None without a true box."""
    if sol is None:
        return None
    truth, size = _truth(sol, kw), plane_size(TASK_CONFIG["frame"], kw)
    box = parse_answer(completion, **kw)
    if box is None:
        return 0.0, {"centre_hit": 0, "parse_fail": 1, "scale_suspect": 0}
    logged = {
        "centre_hit": int(centre_hit(box, truth)),
        "parse_fail": 0,
        "scale_suspect": int(scale_suspect([box], size)),
    }
    return max(iou(box, one) for one in truth), logged


def process_answer(answer, size_from, size_to):
    """Moves the true boxes, in any form of `true_objects`, between two picture sizes."""
    return move_objects(answer, size_from, size_to)


def parse_answer(completion, **kw):
    """The predicted box [x1, y1, x2, y2] in the processed picture, or None."""
    return _box_in(answer_text(completion, kw.get("thought_end", "</think>")))


def compute_metrics(predictions, **kw):
    """Means over the predictions with a true box; an unreadable box counts as IoU 0. scale_suspect is a count."""
    rows = [row for row in predictions if row["status"] != "load_error" and row["sol"] is not None]
    if not rows:
        return {}
    pairs = [(row["prediction"], [one["bbox_2d"] for one in true_objects(row["sol"])]) for row in rows]
    overlaps = [max((iou(box, one) for one in truth), default=0.0) if box else 0.0 for box, truth in pairs]
    suspects = [
        row
        for row in rows
        if row["prediction"] and scale_suspect([row["prediction"]], plane_size(TASK_CONFIG["frame"], row))
    ]
    return {
        "iou": fmean(overlaps),
        "iou_50": fmean(overlap >= 0.5 for overlap in overlaps),
        "centre_hit": fmean(bool(box) and centre_hit(box, truth) for box, truth in pairs),
        "parse_failure_rate": fmean(box is None for box, _ in pairs),
        "scale_suspect": float(len(suspects)),
    }


def _box_in(answer):
    boxes = parse_boxes(answer)
    return boxes[0] if boxes and len(boxes) == 1 and are_pixels(boxes) else None


def _truth(sol, kw):
    boxes = [one["bbox_2d"] for one in true_objects(sol)]
    if not boxes:
        raise UserError(f"record {kw.get('id')}: the answer holds no box: give at least one.")
    return boxes
