"""All coordinate conversions between original picture, processed picture and the 0-1000 grid.

Records hold pixels of the original picture (EXIF applied). The coordinates that a model writes depend on its family, so
each task declares its frame; nothing is guessed from an answer:

    original   pixels of the original picture
    processed  the frame of the run's model: pixels of the picture after the processor resized it (Qwen2.5-VL), or
               norm1000 (Qwen3-VL and others, see model/coordinates.py)
    norm1000   0 to 1000 on both axes
    none       the answer has no coordinates

All sizes are (width, height). No torch.
"""

from task.errors import UserError
from task.processing_utils import planes, scale_bbox_xyxy, scale_points
from task.task_loader import FRAMES

Size = tuple[int, int]
# What the slot {Coordinates} of a template becomes.
PIXELS = "in pixels of the picture"
NORM1000 = "on a scale of 0 to 1000 across the picture's width and height"


def with_unit(text: str, task) -> str:
    """A template's text with the unit of the task's frame in place of `{Coordinates}`."""
    if "{Coordinates}" not in text:
        return text
    frame = model_frame(task) if task.config["frame"] == "processed" else task.config["frame"]
    return text.replace("{Coordinates}", NORM1000 if frame == "norm1000" else PIXELS)


def check_unit(task) -> None:
    """Checks that a task whose answers are in the model's frame says so in its prompt.

    Raises:
        UserError: the frame of the model is not known, or the templates name no unit although it is not pixels.
    """
    if task.config.get("frame") != "processed" or model_frame(task) == "processed":
        return
    if not any("{Coordinates}" in task.config.get(key, "") for key in ("grpo_template", "system_prompt")):
        raise UserError(
            f"{task.path}: the answer would be scored on the model's scale of 0 to 1000, but the prompt does not ask "
            "for it: put {Coordinates} into grpo_template where it names the unit, or set frame to 'norm1000' or "
            "'original' and name that unit."
        )


def model_frame(task) -> str:
    """What the frame "processed" is in the task's run. UserError if the model's frame is not known."""
    if task.coordinate_frame is None:
        raise UserError(
            f"{task.name} asks for coordinates, and it is not known on which scale this model writes them: give "
            "--coordinate_frame processed (pixels of the processed picture) or norm1000 (0 to 1000 on both axes)."
        )
    return task.coordinate_frame


def model_plane(task, processed_size: Size | None) -> Size | None:
    """The size that a task's functions get as `processed_size`: of the plane in which the model writes coordinates."""
    if task.config["frame"] != "processed" or processed_size is None:
        return processed_size
    return frame_size(model_frame(task), processed_size, processed_size)


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
