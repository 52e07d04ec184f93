"""Image and video files -> decoded, checked media: every picture leaves as 8-bit RGB, upright, without metadata.

A file that cannot be decoded raises `MediaError`, whatever was wrong with it. qwen-vl-utils reads media too, but
ignores EXIF orientation and every alpha mode but RGBA, and needs torchcodec or decord for video; so pictures are read
with Pillow and videos with PyAV.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

# EXIF orientation -> what makes the stored picture upright (1 and unknown values: nothing).
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ORIENTATION_TAG = 0x0112
# Qwen's processors refuse a picture whose long side is more than 200 times its short side.
MAX_ASPECT = 200

# Frames a second and least frames as in Qwen2.5-VL's own video reader; its limit of 768 frames would make one clip tens
# of thousands of tokens, so ours is 16, spread over the whole clip.
VIDEO_FPS = 2.0
VIDEO_MIN_FRAMES = 4
VIDEO_MAX_FRAMES = 16


class MediaError(ValueError):
    """An image or video file that cannot be used; the message names the file and what is wrong with it."""


class Video(list):
    """The frames of one clip: an even number of RGB pictures of one size, in order, `fps` of them a second."""

    def __init__(self, frames: list[Image.Image], fps: float):
        super().__init__(frames)
        self.fps = fps


def load_image(path: str | os.PathLike) -> Image.Image:
    """Decodes one picture (the first frame of an animation) to 8-bit RGB.

    EXIF orientation is applied and all metadata dropped, so nobody can apply it twice; `size` is that of the upright
    picture, the frame every coordinate of a record refers to. Transparency is composited on white, deep grey modes are
    scaled by the range of their type.

    Raises:
        MediaError: missing, empty, damaged or cut-off file, not a picture, or too large (`PIL.Image.MAX_IMAGE_PIXELS`).
    """
    path = _existing_file(path, "picture")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(path)
        with image:
            # open() reads the header only: a cut-off file shows itself here.
            image.load()
            rgb = _to_rgb(image)
            turn = UPRIGHT.get(image.getexif().get(ORIENTATION_TAG, 1))
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise MediaError(
            f"picture {path} has more than the {Image.MAX_IMAGE_PIXELS} pixels that are decoded: make it smaller, or "
            "raise PIL.Image.MAX_IMAGE_PIXELS if you trust the file."
        ) from error
    except Image.UnidentifiedImageError as error:
        raise MediaError(f"{path} is not a picture (it starts with {_start_of(path)!r}): replace the file.") from error
    except Exception as error:  # decoders raise nearly every type on damaged bytes
        raise MediaError(
            f"picture {path} cannot be decoded ({type(error).__name__}: {error}): replace the file."
        ) from error
    if turn is not None:
        rgb = rgb.transpose(turn)
    _check_shape("picture", path, rgb)
    return rgb


def _to_rgb(image: Image.Image) -> Image.Image:
    """A new RGB picture with the same pixels and none of the metadata."""
    if image.mode.startswith(("I", "F")):
        values, see_through = np.asarray(image), image.info.get("transparency")
        grey = _to_8_bit(values, image.mode)
        image = Image.fromarray(grey if see_through is None else np.where(values == see_through, np.uint8(255), grey))
    canvas = Image.new("RGB", image.size, (255, 255, 255))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        canvas.paste(rgba, mask=rgba.getchannel("A"))
    else:
        canvas.paste(image.convert("RGB"))
    return canvas


def _to_8_bit(values: np.ndarray, mode: str) -> np.ndarray:
    """Grey values -> 0..255, white being the white of the *type*, so that pictures of one kind stay comparable.

    I;16 (any byte order): 65535. I and F name no white (Pillow gives 16-bit PGM as I, float pictures of 0..1, 0..255
    and 0..65535 as F): the smallest customary white that holds the values. Values outside all of them (depth maps,
    negative numbers) are stretched from their least to their greatest. NaN and infinity are black.
    """
    values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = values.min(), values.max()
    whites = (65535,) if mode.startswith("I;16") else (255, 65535) if mode == "I" else (1, 255, 65535)
    white = next((white for white in whites if low >= 0 and high <= white), None)
    if white is None:
        values, white = values - low, high - low
    return np.round(values * (255.0 / white)).astype(np.uint8)


def load_video(
    path: str | os.PathLike,
    *,
    fps: float = VIDEO_FPS,
    max_frames: int = VIDEO_MAX_FRAMES,
    min_frames: int = VIDEO_MIN_FRAMES,
) -> Video:
    """Decodes frames spread evenly over the clip, upright, padded to an even number by repeating the last one.

    Args:
        fps: wanted frames per second.
        max_frames, min_frames: limits of the number of frames before padding; a shorter clip gives all it has.

    Returns:
        The frames; `Video.fps` is their own rate, after sampling.

    Raises:
        MediaError: missing, empty, damaged or cut-off file, or one without a video stream.
    """
    import av  # 0.2 s that text and picture runs need not pay

    path = _existing_file(path, "video")
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise MediaError(f"{path} holds no video stream: replace the file.")
            stream = container.streams.video[0]
            rate = float(stream.average_rate or stream.guessed_rate or fps)
            total = stream.frames or _count_frames(path)
            wanted = _frame_indices(total, rate, fps, min_frames, max_frames)
            frames = _decode(container, stream, set(wanted))
    except MediaError:
        raise
    except Exception as error:  # as for pictures
        raise MediaError(
            f"video {path} cannot be decoded ({type(error).__name__}: {error}): replace the file."
        ) from error
    # A header may be one or two frames off; a file that was cut lacks far more.
    if not frames or len(frames) < len(wanted) - 1:
        raise MediaError(
            f"video {path} is cut off: {len(frames)} of {len(wanted)} frames can be decoded; replace the file."
        )
    _check_shape("video", path, frames[0])
    sampled_fps = rate * len(wanted) / total
    return Video(frames + frames[-1:] * (len(frames) % 2), sampled_fps)


def _frame_indices(total: int, rate: float, fps: float, min_frames: int, max_frames: int) -> list[int]:
    """Which of `total` frames at `rate` per second to take, first and last included."""
    count = min(max(round(total / rate * fps), min_frames), max_frames, total)
    return np.linspace(0, total - 1, count).round().astype(int).tolist()


def _decode(container, stream, wanted: set[int]) -> list[Image.Image]:
    """The wanted frames as upright RGB pictures."""
    stream.thread_type = "AUTO"
    frames = []
    last = max(wanted, default=-1)
    for index, frame in enumerate(container.decode(stream)):
        if index in wanted:
            frames.append(frame.to_image().rotate(frame.rotation, expand=True))
        if index >= last:
            break
    return frames


def _count_frames(path: Path) -> int:
    """Frames by counting packets: containers such as WebM do not store the number."""
    import av

    with av.open(str(path)) as container:
        return sum(packet.size > 0 for packet in container.demux(video=0))


def _check_shape(kind: str, path: Path, image: Image.Image) -> None:
    if max(image.size) > MAX_ASPECT * min(image.size):
        raise MediaError(
            f"{kind} {path} is {image.width}x{image.height}: no side may be over {MAX_ASPECT} times the other; crop it."
        )


def _existing_file(path: str | os.PathLike, kind: str) -> Path:
    path = Path(path)
    if path.is_dir():
        raise MediaError(f"{kind} {path} is a folder, not a file: name the file.")
    if not path.is_file():
        raise MediaError(f"{kind} {path} does not exist: check the path and data_root.")
    if path.stat().st_size == 0:
        raise MediaError(f"{kind} {path} is empty (0 bytes): replace the file.")
    return path


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)
