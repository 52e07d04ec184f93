"""Image and video files -> decoded, checked media: every picture is 8-bit RGB, upright, without metadata.

A file that cannot be decoded raises `MediaError`, whatever the reason. qwen-vl-utils reads media too, but it ignores
EXIF orientation and every alpha mode except RGBA, and needs torchcodec or decord for video; so pictures are read with
Pillow and videos with PyAV.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

from task.errors import UserError

# EXIF orientation -> the operation that makes the stored picture upright (none for 1 and unknown values).
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
# Tags of grey TIFFs that Pillow does not apply: they define the meaning of the values.
BITS_TAG, SENSE_TAG, SAMPLE_FORMAT_TAG = 258, 262, 339
WHITE_IS_ZERO, UNSIGNED = 0, 1
# Qwen's processors reject pictures whose long side is more than 200 times the short side.
MAX_ASPECT = 200

# Frames per second and minimum number of frames as in Qwen2.5-VL's own video reader. Its limit of 768 frames would
# make a clip tens of thousands of tokens long, so ours is 16, spread over the whole clip.
VIDEO_FPS = 2.0
VIDEO_MIN_FRAMES = 4
VIDEO_MAX_FRAMES = 16
# Containers whose header states the clip's duration as shown (others give a number of frames and a rate), and the
# share of it that may be missing.
STATE_LENGTH = ("matroska,webm", "mov,mp4,m4a,3gp,3g2,mj2", "flv")
MISSING_SHARE = 0.05


class MediaError(UserError):
    """An image or video file that cannot be used; the message names the file and the fault."""


class Video(list):
    """The frames of one clip: an even number of RGB pictures of one size, in order, at `fps` frames per second."""

    def __init__(self, frames: list[Image.Image], fps: float):
        super().__init__(frames)
        self.fps = fps


def load_image(path: str | os.PathLike) -> Image.Image:
    """Decodes one picture (the first frame of an animation) to 8-bit RGB.

    EXIF orientation is applied and all metadata dropped, so it cannot be applied twice. `size` is that of the upright
    picture, which all coordinates of a record refer to. Transparency is composited on white; grey modes of more than 8
    bits are scaled by the range of their type.

    Raises:
        MediaError: missing, empty, damaged or cut-off file, not a picture, or too large (`PIL.Image.MAX_IMAGE_PIXELS`).
    """
    path = _existing_file(path, "picture")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(path)
        with image:
            # open() reads only the header; truncated files fail here.
            image.load()
            rgb = _to_rgb(image)
            turn = UPRIGHT.get(image.getexif().get(ORIENTATION_TAG, 1))
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise MediaError(
            f"picture {path} has more than the {Image.MAX_IMAGE_PIXELS} pixels that are decoded: make it smaller, or "
            "raise PIL.Image.MAX_IMAGE_PIXELS if you trust the file."
        ) from error
    except Image.UnidentifiedImageError as error:
        raise MediaError(
            f"{path} is not a picture of a known kind (it starts with {_start_of(path)!r}): replace the file, or save "
            "it as PNG or JPEG."
        ) from error
    except Exception as error:  # decoders raise nearly every exception type on damaged bytes
        raise MediaError(
            f"picture {path} cannot be decoded ({type(error).__name__}: {error}): replace the file."
        ) from error
    if turn is not None:
        rgb = rgb.transpose(turn)
    _check_shape("picture", path, rgb)
    return rgb


def is_damaged_jpeg(path: str | os.PathLike) -> bool:
    """True for a damaged JPEG that `load_image` accepts, since libjpeg fills in what it cannot read.

    Checked with a stricter decoder, at the cost of decoding the picture again. It finds most damage of the size of a
    disk block, and less of smaller damage, since bytes that still decode go unnoticed.
    """
    import av

    content = Path(path).read_bytes()
    if not content.startswith(b"\xff\xd8"):
        return False
    decoder = av.CodecContext.create("mjpeg", "r")
    decoder.options = {"err_detect": "explode"}
    try:
        decoder.decode(av.Packet(content))
        decoder.decode(None)
    except av.error.InvalidDataError:
        return True
    except av.error.FFmpegError:  # a JPEG variant that it does not support
        return False
    return False


def _to_rgb(image: Image.Image) -> Image.Image:
    """A new RGB picture with the same pixels and no metadata."""
    if image.mode.startswith(("I", "F")):
        values, see_through = _grey_values(image), image.info.get("transparency")
        grey = _to_8_bit(values, _whites(image))
        if getattr(image, "tag_v2", {}).get(SENSE_TAG) == WHITE_IS_ZERO:
            grey = 255 - grey
        image = Image.fromarray(grey if see_through is None else np.where(values == see_through, np.uint8(255), grey))
    canvas = Image.new("RGB", image.size, (255, 255, 255))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        canvas.paste(rgba, mask=rgba.getchannel("A"))
    else:
        canvas.paste(image.convert("RGB"))
    return canvas


def _grey_values(image: Image.Image) -> np.ndarray:
    values, tags = np.asarray(image), getattr(image, "tag_v2", {})
    unsigned = tags.get(SAMPLE_FORMAT_TAG, (UNSIGNED,))[0] == UNSIGNED
    # Pillow reads unsigned 32-bit values as signed, which would turn the brightest values into the darkest.
    return values.view(np.uint32) if tags.get(BITS_TAG) == (32,) and image.mode == "I" and unsigned else values


def _whites(image: Image.Image) -> tuple[int, ...]:
    """The possible values of white in a grey picture of more than 8 bits, in ascending order.

    If the *type* defines white, only that value, so that pictures of one type stay comparable: 65535 for I;16 of any
    byte order and for PGM, which Pillow reads as I; 4095 for a 12-bit TIFF. Other I and F pictures define no white:
    float pictures in 0..1, 0..255 and 0..65535 are all common.
    """
    if image.mode == "F":
        return 1, 255, 65535
    if image.mode == "I" and image.format != "PPM":
        return 255, 65535
    return (4095,) if getattr(image, "tag_v2", {}).get(BITS_TAG) == (12,) else (65535,)


def _to_8_bit(values: np.ndarray, whites: tuple[int, ...]) -> np.ndarray:
    """Grey values -> 0..255, where 255 is the smallest white that is not exceeded.

    Values outside every range (depth maps, negative numbers) are stretched from minimum to maximum. NaN and infinity
    become black.
    """
    values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = values.min(), values.max()
    white = next((white for white in whites if low >= 0 and high <= white), None)
    if white is None:
        values, white = values - low, (high - low) or 1.0
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
        max_frames, min_frames: limits of the number of frames before padding; a shorter clip gives all its frames.

    Returns:
        The frames; `Video.fps` is their rate after sampling.

    Raises:
        MediaError: missing, empty, damaged or cut-off file, or one without a video stream.
    """
    import av  # takes 0.2 s, which text and picture runs save

    path = _existing_file(path, "video")
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise MediaError(f"{path} holds no video stream: replace the file.")
            stream = container.streams.video[0]
            total, rate = _measure(path, float(stream.average_rate or stream.guessed_rate or fps))
            wanted = _frame_indices(total, rate, fps, min_frames, max_frames)
            frames = _decode(container, stream, set(wanted))
    except MediaError:
        raise
    except Exception as error:  # as for pictures
        raise MediaError(
            f"video {path} cannot be decoded ({type(error).__name__}: {error}): replace the file."
        ) from error
    # A header may be off by one or two frames; a truncated file lacks far more.
    if not frames or len(frames) < len(wanted) - 1:
        raise MediaError(
            f"video {path} is cut off: {len(frames)} of {len(wanted)} frames can be decoded; replace the file."
        )
    sizes = {frame.size for frame in frames}
    if len(sizes) > 1:
        raise MediaError(f"video {path} changes its size ({sorted(sizes)}): encode it anew in one size.")
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


def _measure(path: Path, nominal_rate: float) -> tuple[int, float]:
    """(frames, frames per second) of a clip, from its packets; nothing is decoded.

    Headers are unreliable: in a fragmented MP4 they count only the first fragment, in a trimmed one also hidden frames;
    for a variable frame rate they state a nominal rate (1000 is common), and Matroska stores no count.
    `nominal_rate` is used for streams without time stamps.

    Raises:
        MediaError: the packets end long before the duration in the header.
    """
    import av

    with av.open(str(path)) as container:
        video = container.streams.video[0]
        count, hidden, times, end = 0, 0, [], 0.0
        for packet in container.demux():
            if not packet.size:
                continue
            start = None if packet.pts is None else float(packet.pts * packet.time_base)
            if start is not None:
                end = max(end, start + float((packet.duration or 0) * packet.time_base))
            if packet.stream is video:
                count += 1
                hidden += packet.is_discard
                times += [] if start is None or packet.is_discard else [start]
        span = max(times, default=0.0) - min(times, default=0.0)
        rate = (len(times) - 1) / span if span > 0 else nominal_rate
        by_header = container.format.name in STATE_LENGTH
        length = (container.duration or 0) / av.time_base if by_header else video.frames / nominal_rate
        # Sound may be longer than the picture, so all streams count; the last packet may lack a duration.
        if times and end + 1 / rate < (1 - MISSING_SHARE) * length:
            raise MediaError(
                f"video {path} is cut off: it has {end:g} s of the {length:g} s that its header says; replace the file."
            )
    return count - hidden, rate


def _check_shape(kind: str, path: Path, image: Image.Image) -> None:
    if max(image.size) > MAX_ASPECT * min(image.size):
        raise MediaError(
            f"{kind} {path} is {image.width}x{image.height}: no side may be over {MAX_ASPECT} times the other; crop it."
        )


def _existing_file(path: str | os.PathLike, kind: str) -> Path:
    path = Path(path)
    # os.path: a name that is too long counts as a missing file; Path would raise another error.
    if os.path.isdir(path):
        raise MediaError(f"{kind} {path} is a folder, not a file: name the file.")
    if not os.path.isfile(path):
        raise MediaError(f"{kind} {path} does not exist: check the path and data_root.")
    if path.stat().st_size == 0:
        raise MediaError(f"{kind} {path} is empty (0 bytes): replace the file.")
    return path


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)
