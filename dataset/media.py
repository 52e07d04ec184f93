"""Image and video files -> decoded, checked media: every picture is 8-bit RGB, upright, without metadata.

A file that cannot be decoded raises `MediaError`, whatever the reason. qwen-vl-utils reads media too, but it ignores
EXIF orientation and every alpha mode except RGBA, and needs torchcodec or decord for video; so pictures are read with
Pillow and videos with PyAV.
"""

from __future__ import annotations

import contextlib
import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from dataset.colours import to_rgb
from dataset.tiff import UnreadForm, count_pages, is_tiff, read_deep, silence_libtiff
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
# Exceptions of decoders on damaged bytes whose messages do not help.
DAMAGED = (LookupError, StopIteration, EOFError, TypeError, ValueError, struct.error, zlib.error)
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


silence_libtiff()


class MediaError(UserError):
    """An image or video file that cannot be used; the message names the file and the fault."""


class Video(list):
    """The frames of one clip: an even number of RGB pictures of one size, in order, at `fps` frames per second."""

    def __init__(self, frames: list[Image.Image], fps: float):
        super().__init__(frames)
        self.fps = fps


def load_image(path: str | os.PathLike) -> Image.Image:
    """Decodes one picture (the first frame of an animation) to 8-bit sRGB.

    EXIF orientation is applied and all metadata dropped, so it cannot be applied twice. `size` is that of the upright
    picture, which all coordinates of a record refer to. For transparency, grey modes of more than 8 bits and colour
    profiles see `to_rgb`.

    Raises:
        MediaError: missing, empty, damaged or cut-off file, not a picture, a TIFF with several pages, or too large
            (`PIL.Image.MAX_IMAGE_PIXELS`).
    """
    path = _existing_file(path, "picture")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of Pillow, about damaged metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            pages = count_pages(path) if is_tiff(path) else 1
            rgb, orientation = _decoded(path)
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
    except UnreadForm as error:
        raise MediaError(f"picture {path} is a TIFF of a form that is not read ({error}): save it as PNG.") from error
    except Exception as error:  # decoders raise nearly every exception type on damaged bytes
        damaged = isinstance(error, DAMAGED) or "decoder error" in str(error)
        said = "its data are damaged" if damaged else f"{type(error).__name__}: {error}"
        raise MediaError(f"picture {path} cannot be decoded ({said}): replace the file.") from error
    if pages > 1:
        raise MediaError(
            f"picture {path} has {pages} pages, and a picture is one: save the pages as files of their own, and list "
            "those that the question is about."
        )
    turn = UPRIGHT.get(orientation)
    rgb = rgb if turn is None else rgb.transpose(turn)
    _check_shape("picture", path, rgb)
    return rgb


def _decoded(path: Path) -> tuple[Image.Image, int]:
    """(RGB picture, EXIF orientation)."""
    try:
        image = Image.open(path)
    except Image.UnidentifiedImageError:
        if not is_tiff(path):
            raise
        image = None
    # Pillow swaps the bytes of compressed big-endian floats twice.
    if image is None or (image.mode == "F" and _start_of(path).startswith(b"MM")):
        image, orientation = read_deep(path)
        return to_rgb(image), orientation
    with image:
        # open() reads only the header; truncated files fail here.
        image.load()
        return to_rgb(image), image.getexif().get(ORIENTATION_TAG, 1)


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


def load_video(
    path: str | os.PathLike,
    *,
    fps: float = VIDEO_FPS,
    max_frames: int = VIDEO_MAX_FRAMES,
    min_frames: int = VIDEO_MIN_FRAMES,
) -> Video:
    """Decodes frames spread evenly over the clip, as players display them: upright, with square pixels.

    Frames with non-square pixels are enlarged along one axis, as in browsers. An odd number of frames is padded by
    repeating the last one.

    Args:
        fps: wanted frames per second.
        max_frames, min_frames: limits of the number of frames before padding; a shorter clip gives all its frames.

    Returns:
        The frames; `Video.fps` is their rate after sampling.

    Raises:
        MediaError: missing, empty, damaged or cut-off file, or one without a video stream.
    """
    path = _existing_file(path, "video")
    with _decoder_faults(path):
        packets = _measure(path, fps)
        total, rate = packets.total, packets.rate
        wanted = _frame_indices(total, rate, fps, min_frames, max_frames)
        frames, times = _decode(path, set(wanted))
        if not frames or len(frames) < len(wanted) - 1:
            _check_whole(path, packets, times, f"{len(frames)} of {len(wanted)}")
            total, rate = len(times), _rate(times) or rate * len(times) / total
            wanted = _frame_indices(total, rate, fps, min_frames, max_frames)
            frames, _ = _decode(path, set(wanted))
    sizes = {frame.size for frame in frames}
    if len(sizes) > 1:
        raise MediaError(f"video {path} changes its size ({sorted(sizes)}): encode it anew in one size.")
    _check_shape("video", path, frames[0])
    sampled_fps = rate * len(wanted) / total
    return Video(frames + frames[-1:] * (len(frames) % 2), sampled_fps)


@contextlib.contextmanager
def _decoder_faults(path: Path):
    """Replaces FFmpeg's errors by MediaErrors that name the file and the way out."""
    import av  # takes 0.2 s, which text and picture runs save

    try:
        yield
    except MediaError:
        raise
    except (av.error.DecoderNotFoundError, av.error.PatchWelcomeError) as error:
        raise MediaError(
            f"video {path} cannot be decoded: PyAV's FFmpeg has no decoder for its form; encode it anew, as MP4 with "
            "H.264 for example."
        ) from error
    except av.error.FFmpegError as error:
        raise MediaError(
            f"video {path} cannot be decoded: it is damaged, or no video of a known form; replace the file."
        ) from error
    except Exception as error:  # as for pictures
        raise MediaError(
            f"video {path} cannot be decoded ({type(error).__name__}: {error}): replace the file."
        ) from error


def _video_of(container, path: Path):
    """The stream that players choose: in an AVIF, the animation and not its still picture."""
    stream = container.streams.best("video")
    if stream is None:
        raise MediaError(f"{path} holds no video stream: replace the file.")
    return stream


def _frame_indices(total: int, rate: float, fps: float, min_frames: int, max_frames: int) -> list[int]:
    """Which of `total` frames at `rate` per second to take, first and last included."""
    count = min(max(round(total / rate * fps), min_frames), max_frames, total)
    return np.linspace(0, total - 1, count).round().astype(int).tolist()


def _decode(path: Path, wanted: set[int]) -> tuple[list[Image.Image], list[float | None]]:
    """(the wanted frames as displayed, the time in seconds of every frame decoded up to the last wanted one)."""
    import av

    frames, times = [], []
    last = max(wanted, default=-1)
    with av.open(str(path)) as container:
        stream = _video_of(container, path)
        stream.thread_type = "AUTO"
        aspect = float(stream.sample_aspect_ratio or 1)
        for index, frame in enumerate(container.decode(stream)):
            times.append(frame.time)
            if index in wanted:
                frames.append(_square(frame.to_image(), aspect).rotate(frame.rotation, expand=True))
            if index >= last:
                break
    return frames, times


def _check_whole(path: Path, packets: _Packets, times: list[float | None], found: str) -> None:
    """MediaError if a clip yields fewer frames than packets because it was cut off.

    Some packets yield no frame of their own: fields, hidden frames, and packets before the first key frame of a
    recording. If the container states the number of frames, nearly all must be there; otherwise the end must be.
    """
    known = [time for time in times if time is not None]
    lacks_end = bool(known) and max(known) < packets.end - MISSING_SHARE * packets.span
    if not times or lacks_end or (packets.counted and len(times) < (1 - MISSING_SHARE) * packets.total):
        raise MediaError(f"video {path} is cut off: {found} frames can be decoded; replace the file.")


def _rate(times: list[float | None]) -> float | None:
    """Frames per second; None without time stamps."""
    known = [time for time in times if time is not None]
    span = max(known, default=0.0) - min(known, default=0.0)
    return (len(known) - 1) / span if span > 0 else None


def _square(image: Image.Image, aspect: float) -> Image.Image:
    """The frame resampled to square pixels; `aspect` is width over height of the stored pixels."""
    size = (round(image.width * max(aspect, 1.0)), round(image.height * max(1.0 / aspect, 1.0)))
    return image if size == image.size else image.resize(size, Image.Resampling.BICUBIC)


class _Packets(NamedTuple):
    """A clip's number of shown packets, whether the container states a number of frames, the start of the last packet
    and the time from first to last start (seconds), and packets per second.
    """

    total: int
    counted: bool
    end: float
    span: float
    rate: float


def _measure(path: Path, wanted_rate: float) -> _Packets:
    """Reads the packets of a clip without decoding them.

    Headers are unreliable: in a fragmented MP4 they count only the first fragment, in a trimmed one
    also hidden frames; for a variable frame rate they state a nominal rate (1000 is common), and Matroska stores no
    count.

    Args:
        wanted_rate: for a stream without time stamps that names no rate.

    Raises:
        MediaError: the packets end long before the duration in the header.
    """
    import av

    with av.open(str(path)) as container:
        video = _video_of(container, path)
        nominal_rate = float(video.average_rate or video.guessed_rate or wanted_rate)
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
        rate = _rate(times) or nominal_rate
        by_header = container.format.name in STATE_LENGTH
        length = (container.duration or 0) / av.time_base if by_header else video.frames / nominal_rate
        # Sound may be longer than the picture, so all streams count; the last packet may lack a duration.
        if times and end + 1 / rate < (1 - MISSING_SHARE) * length:
            raise MediaError(
                f"video {path} is cut off: it has {end:g} s of the {length:g} s that its header says; replace the file."
            )
        return _Packets(count - hidden, video.frames > 0, max(times, default=0.0), span, rate)


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
