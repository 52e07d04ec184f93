"""Moves coordinates from a picture of one size to the same picture at another size.

Sizes are (width, height). If the aspect ratios differ, x and y are scaled by different factors, as the picture was.
"""

from numbers import Real

from task.errors import UserError

Size = tuple[float, float]
LARGEST = 1e300  # multiplied by any scale, still finite


def scale_points(points, size_from: Size, size_to: Size) -> list:
    """Scales one point [x, y] or a list of points; returns floats.

    >>> scale_points([320, 240], (640, 480), (1000, 1000))
    [500.0, 500.0]
    """
    return _scale(points, 2, "a point [x, y] or a list of points", size_from, size_to)


def scale_trajectory(points, size_from: Size, size_to: Size) -> list[list[float]]:
    """Scales a path [[x, y], ...] of at least one way-point; returns floats."""
    if not points or _are_numbers(points):
        raise UserError(f"a path must be a list of at least one way-point [[x, y], ...], got {_shown(points)}.")
    return _scale(points, 2, "a path [[x, y], ...]", size_from, size_to)


def scale_bbox_xyxy(boxes, size_from: Size, size_to: Size) -> list:
    """Scales one box [x1, y1, x2, y2] or a list of boxes; returns floats.

    >>> scale_bbox_xyxy([500, 500, 750, 750], (1000, 1000), (640, 480))
    [320.0, 240.0, 480.0, 360.0]
    """
    return _scale(boxes, 4, "a box [x1, y1, x2, y2] or a list of boxes", size_from, size_to)


def _scale(value, length: int, wanted: str, size_from: Size, size_to: Size) -> list:
    _check_size(size_from)
    _check_size(size_to)
    if _are_numbers(value) and len(value) == length:
        return _scaled(value, size_from, size_to)
    if not isinstance(value, list | tuple) or not all(_are_numbers(one) and len(one) == length for one in value):
        raise UserError(f"expected {wanted} of finite numbers, got {_shown(value)}.")
    return [_scaled(one, size_from, size_to) for one in value]


def _scaled(numbers, size_from: Size, size_to: Size) -> list[float]:
    """Scales numbers x, y, x, y, ...; multiplies before dividing, so that whole results are exact."""
    return [float(number) * size_to[i % 2] / size_from[i % 2] for i, number in enumerate(numbers)]


def _check_size(size: Size) -> None:
    if not _are_numbers(size) or len(size) != 2 or min(size) <= 0:
        raise UserError(f"a picture size must be (width, height), both above 0, got {size!r}.")


def _are_numbers(value) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(n, Real) and not isinstance(n, bool) and abs(n) < LARGEST for n in value)
    )


def _shown(value) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def planes(image_size, processed_size) -> dict:
    """Frame -> (width, height) of the plane that its coordinates lie in."""
    return {"original": image_size, "processed": processed_size, "norm1000": (1000, 1000)}
