"""Finds paths, boxes and points in an answer, and converts them to pixels of the original picture."""

from __future__ import annotations

from report.lines import number
from task.rewards.frames import from_frame

MOST_SHAPES = 120
MOST_POINTS = 400
LONGEST_LABEL = 60
FAR = 1e6  # larger coordinates are not positions in a picture


def shapes_in(value, frame: str = "original", image_size=None, processed_size=None) -> list[dict]:
    """The shapes of an answer as [{"kind": "path" | "box" | "point", "at": [numbers], "label": text or absent}].

    `at` is x1, y1, x2, y2, ... in pixels of the original picture. An answer may be [x, y], [x1, y1, x2, y2], a path
    [[x, y], ...], {"bbox_2d": ...}, {"point_2d": ...}, {"x", "y", "width", "height"}, or a list of these.
    Anything else, or what cannot be converted, gives no shape.

    >>> shapes_in([[0, 0], [500, 1000]], "norm1000", (640, 480), (644, 476))
    [{'kind': 'path', 'at': [0.0, 0.0, 320.0, 480.0]}]
    """
    if frame == "none":
        return []
    found = _one(value)
    if found is None and isinstance(value, list):
        found = [shape for item in value[:MOST_SHAPES] for shape in _one(item) or []]
    return [moved for shape in found or [] if (moved := _moved(shape, frame, image_size, processed_size))]


def _one(value) -> list[dict] | None:
    """A list with the shape of one path, box, point or labelled place; None for anything else."""
    if isinstance(value, dict):
        label = value.get("label")
        named = {"label": label[:LONGEST_LABEL]} if isinstance(label, str) and label else {}
        if {"x", "y", "width", "height"} <= value.keys():
            x, y, width, height = (number(value[key]) for key in ("x", "y", "width", "height"))
            if None in (x, y, width, height):
                return None
            return [{"kind": "box", "at": [x, y, x + width, y + height], **named}]
        inside = _one(value.get("bbox_2d") or value.get("point_2d"))
        return [{**inside[0], **named}] if inside else None
    if not isinstance(value, list | tuple) or not value:
        return None
    numbers = [number(x) for x in value]
    if None not in numbers and len(numbers) in (2, 4):
        return [{"kind": "point" if len(numbers) == 2 else "box", "at": numbers}]
    points = [[number(x) for x in p] if isinstance(p, list | tuple) and len(p) == 2 else [None] for p in value]
    if any(None in point for point in points[:MOST_POINTS]):
        return None
    kind = "path" if len(points) > 1 else "point"
    return [{"kind": kind, "at": [x for point in points[:MOST_POINTS] for x in point]}]


def _moved(shape: dict, frame: str, image_size, processed_size) -> dict | None:
    pairs = [[shape["at"][i], shape["at"][i + 1]] for i in range(0, len(shape["at"]), 2)]
    try:
        pairs = from_frame(pairs, frame, image_size, processed_size)
    except (ValueError, TypeError):  # the frame needs a picture size that is missing
        return None
    flat = [round(float(x), 2) for pair in pairs for x in pair]
    return {**shape, "at": flat} if all(abs(x) < FAR for x in flat) else None
