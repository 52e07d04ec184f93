"""All coordinate conversions between original picture, processed picture and the 0-1000 grid.

Records hold pixels of the original picture (EXIF applied). The coordinates that a model writes depend on its family, so
each task declares its frame; nothing is guessed from an answer:

    original   pixels of the original picture
    processed  pixels of the picture after the processor resized it (used by Qwen2.5-VL)
    norm1000   0 to 1000 on both axes (used by Qwen2-VL and Qwen3-VL)
    none       the answer has no coordinates

All sizes are (width, height). No torch.
"""

from task.errors import UserError
from task.processing_utils import planes, scale_bbox_xyxy, scale_points
from task.task_loader import FRAMES

Size = tuple[int, int]


def frame_size(frame: str, image_size: Size | None, processed_size: Size | None) -> Size | None:
    """The size of the plane of a frame's coordinates; None without a picture and for the frame "none".

    >>> frame_size("norm1000", (640, 480), (644, 476))
    (1000, 1000)
    """
    if frame not in FRAMES:
        raise UserError(f"frame {frame!r} is unknown: choose one of {', '.join(FRAMES)}.")
    if image_size is None or frame == "none":
        return None
    return planes(image_size, processed_size)[frame]


def to_frame(value, frame: str, image_size: Size | None, processed_size: Size | None):
    """Converts points [x, y], boxes [x1, y1, x2, y2] or lists of either from original pixels to a frame."""
    return _move(value, image_size, frame_size(frame, image_size, processed_size), frame)


def from_frame(value, frame: str, image_size: Size | None, processed_size: Size | None):
    """Converts points, boxes or lists of either from a frame to original pixels: the inverse of `to_frame`."""
    return _move(value, frame_size(frame, image_size, processed_size), image_size, frame)


def processed_size(grid_thw, patch_size: int = 14) -> Size:
    """The processed picture's (width, height) from the processor's grid of patches (frames, rows, columns).

    >>> processed_size((1, 38, 52))
    (728, 532)
    """
    _, rows, columns = (int(n) for n in grid_thw)
    return columns * patch_size, rows * patch_size


def _move(value, size_from: Size | None, size_to: Size | None, frame: str):
    if frame == "none":
        return value
    if size_from is None or size_to is None:
        raise UserError(f"frame {frame!r} needs a picture and its processed size, but the record has none.")
    one = value[0] if _is_list(value) and value and _is_list(value[0]) else value
    scale = scale_bbox_xyxy if _is_list(one) and len(one) == 4 else scale_points
    return scale(value, size_from, size_to)


def _is_list(value) -> bool:
    return isinstance(value, list | tuple)
