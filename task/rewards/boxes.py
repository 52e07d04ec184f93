"""Boxes [x1, y1, x2, y2], x to the right and y down: overlap, centre, distance, and their forms in records.

Shared by the tasks that score boxes.
"""

import math

from task.errors import UserError
from task.processing_utils import LARGEST, planes, scale_bbox_xyxy

FARTHEST = 1e6  # a number beyond this is not a pixel
XYWH = ("x", "y", "width", "height")
FORMS = (
    'a box [x1, y1, x2, y2], {"bbox_2d": [x1, y1, x2, y2], "label": text} or '
    '{"x": , "y": , "width": , "height": }, or a list of these'
)


def iou(a, b) -> float:
    """Intersection over union in [0, 1]; 0.0 if a box has no area or its corners are swapped.

    >>> round(iou([182.0, 106.4, 364.0, 319.2], [182, 106, 364, 319]), 3)
    0.997
    """
    if area(a) == 0.0 or area(b) == 0.0:
        return 0.0
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    return shared / (area(a) + area(b) - shared)


def area(box) -> float:
    """Width times height; 0.0 if the corners are swapped."""
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


def centre(box) -> list[float]:
    return [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]


def distance(point, box) -> float:
    """Distance from a point to the nearest point of a box; 0.0 inside it and on its edge."""
    dx = max(box[0] - point[0], point[0] - box[2], 0.0)
    dy = max(box[1] - point[1], point[1] - box[3], 0.0)
    return math.hypot(dx, dy)


def centre_hit(box, boxes) -> bool:
    """True if the centre of a box lies inside or on the edge of one of `boxes`. False for a box without area.

    >>> centre_hit([10, 10, 20, 20], [[0, 0, 30, 30]]), centre_hit([20, 20, 10, 10], [[0, 0, 30, 30]])
    (True, False)
    """
    return area(box) > 0 and any(distance(centre(box), one) == 0.0 for one in boxes)


def true_objects(answer) -> list[dict]:
    """A record's answer as [{"bbox_2d": [x1, y1, x2, y2], "label": text or None}, ...]; [] for no object.

    Raises UserError for any other form, and for a box without area.

    >>> true_objects({"x": 352.874, "y": 186.479, "width": 19.296, "height": 14.472})[0]["bbox_2d"][2]
    372.17
    """
    if isinstance(answer, dict) or (isinstance(answer, list) and answer and _is_number(answer[0])):
        answer = [answer]
    if not isinstance(answer, list):
        raise UserError(f"the answer must be {FORMS}, got {_shown(answer)}.")
    return [_true_object(one) for one in answer]


def move_objects(answer, size_from, size_to) -> list[dict]:
    """`true_objects`, rescaled from one picture size (width, height) to another."""
    objects = true_objects(answer)
    return [one | {"bbox_2d": scale_bbox_xyxy(one["bbox_2d"], size_from, size_to)} for one in objects]


def are_pixels(shapes) -> bool:
    """True if every number of the points or boxes is small enough to be a pixel of some picture."""
    return all(abs(number) <= FARTHEST for shape in shapes for number in shape)


def scale_suspect(shapes, size) -> bool:
    """True if all numbers lie in [0, 1] or some lie outside the picture, so that the scale is probably not pixels.

    `shapes` are points or boxes, `size` is (width, height). Such answers are scored unchanged, and counted.
    """
    numbers = [number for shape in shapes for number in shape]
    if not numbers:
        return False
    beyond = any(number > size[place % 2] for shape in shapes for place, number in enumerate(shape))
    return beyond or min(numbers) < 0 or max(numbers) <= 1


def plane_size(frame: str, of) -> tuple:
    """(width, height) of the plane in which a task's coordinates lie; UserError for a record without a picture.

    Args:
        frame: TASK_CONFIG["frame"].
        of: the keywords of a reward, or a prediction, with `image_size` and `processed_size`.
    """
    if of.get("processed_size") is None:
        name = of.get("question_type", "this task")
        raise UserError(f"record {of.get('id')}: {name} scores positions in a picture: give the record an image.")
    return planes(of.get("image_size"), of["processed_size"]).get(frame) or of["image_size"]


def _true_object(one) -> dict:
    label = one.get("label") if isinstance(one, dict) else None
    box = one
    if isinstance(one, dict):
        box = one.get("bbox_2d") if "bbox_2d" in one else [one.get(key) for key in XYWH]
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)) or not _is_label(label):
        raise UserError(f"the answer must be {FORMS}, got {_shown(one)}.")
    box = [float(number) for number in box]
    if isinstance(one, dict) and "bbox_2d" not in one:
        box = [box[0], box[1], box[0] + box[2], box[1] + box[3]]
    if area(box) == 0.0 or not are_pixels([box]):
        raise UserError(
            f"the box {_shown(box)} has no area in pixels up to {FARTHEST:.0f}: x1 < x2 and y1 < y2 are needed."
        )
    return {"bbox_2d": box, "label": label}


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_label(value) -> bool:
    return value is None or (isinstance(value, str) and value.strip() != "")


def _shown(value) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
