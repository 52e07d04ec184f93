"""TIFF features that Pillow lacks: counting pages; 16-bit and 64-bit floats, floats in colour, 64-bit integers.

Pillow reads only 32-bit floats in one band. Supported here: TIFF 6.0 (Adobe, 1992) with the floating-point predictor,
uncompressed or deflated, in strips or tiles.
"""

from __future__ import annotations

import ctypes
import zlib
from pathlib import Path

import numpy as np
import PIL
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from dataset.colours import FLOAT_WHITES, WIDE_WHITES, to_8_bit

STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
WIDTH, HEIGHT, BITS, COMPRESSION, SENSE, STRIPS, BANDS, ROWS, STRIP_BYTES = 256, 257, 258, 259, 262, 273, 277, 278, 279
PLANAR, PREDICTOR, TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES, EXTRA, FORMAT = 284, 317, 322, 323, 324, 325, 338, 339
KIND, OLD_KIND, ORIENTATION = 254, 255, 274
REDUCED_OR_MASK, OLD_REDUCED = 0b101, 2
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB = 0, 1, 2
UNCOMPRESSED, DEFLATED = 1, (8, 32946)
FLOAT_PREDICTOR = 3
NUMPY_KINDS = {1: "u", 2: "i", 3: "f"}
MOST_PAGES = 10_000


class UnreadForm(ValueError):
    """An intact TIFF in a form that is not supported."""


def silence_libtiff() -> None:
    """Stops Pillow's libtiff from printing errors that name no file; Pillow raises them anyway."""
    for library in (Path(PIL.__file__).parents[1] / "pillow.libs").glob("libtiff-*.so*"):
        loaded = ctypes.CDLL(str(library))
        loaded.TIFFSetErrorHandler(None)
        loaded.TIFFSetWarningHandler(None)


def is_tiff(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in STARTS


def count_pages(path: Path) -> int:
    """The number of pages in a TIFF, without reduced copies (thumbnails, pyramids) and masks."""
    return sum(
        WIDTH in tags and not tags.get(KIND, 0) & REDUCED_OR_MASK and tags.get(OLD_KIND, 0) != OLD_REDUCED
        for tags in _directories(path)
    )


def read_deep(path: Path) -> tuple[Image.Image, int]:
    """(picture, EXIF orientation) of the first page: grey, RGB or RGBA, in number types that Pillow does not read.

    For 8-bit and 16-bit integers white is the type's maximum; other types are scaled by `to_8_bit` with FLOAT_WHITES or
    WIDE_WHITES.

    Raises:
        UnreadForm: an unsupported form, which the message names.
    """
    tags = next(_directories(path))
    bits, formats = tags[BITS], tags.get(FORMAT, (1,))
    kind = NUMPY_KINDS.get(formats[0])
    if kind is None or len({*bits}) > 1 or bits[0] not in ((16, 32, 64) if kind == "f" else (8, 16, 32, 64)):
        raise UnreadForm(f"numbers of {bits[0]} bits in sample format {formats[0]} are not read")
    bands, sense = tags.get(BANDS, 1), tags.get(SENSE, BLACK_IS_ZERO)
    colours = {WHITE_IS_ZERO: 1, BLACK_IS_ZERO: 1, RGB: 3}.get(sense)
    alpha = bands - 1 if bands - (colours or 0) == 1 and tags.get(EXTRA, (0,))[0] in (1, 2) else None
    if colours is None or (bands != colours and bands != colours + 1):
        raise UnreadForm(f"{bands} bands of photometric kind {sense} are no grey and no RGB picture")
    Image._decompression_bomb_check((tags[WIDTH], tags[HEIGHT]))
    dtype = np.dtype(f"{'<' if _is_little(path) else '>'}{kind}{bits[0] // 8}")
    values = _values(path.read_bytes(), tags, dtype, bands)
    whites = FLOAT_WHITES if kind == "f" else WIDE_WHITES if bits[0] > 16 else (np.iinfo(dtype).max,)
    grey = to_8_bit(values[..., :colours], whites)
    grey = 255 - grey if sense == WHITE_IS_ZERO else grey
    image = Image.fromarray(grey[..., 0] if colours == 1 else grey)
    if alpha is not None:
        image.putalpha(Image.fromarray(to_8_bit(values[..., alpha], whites)))
    return image, tags.get(ORIENTATION, 1)


def _directories(path: Path):
    """The tags of each page."""
    with path.open("rb") as file:
        header = file.read(8)
        header += file.read(8) if header[2:3] == b"+" or header[3:4] == b"+" else b""
        directory, seen = ImageFileDirectory_v2(header), set()
        while directory.next and directory.next not in seen and len(seen) < MOST_PAGES:
            seen.add(directory.next)
            file.seek(directory.next)
            directory.load(file)
            yield dict(directory)


def _is_little(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"II"


def _values(data: bytes, tags: dict, dtype: np.dtype, bands: int) -> np.ndarray:
    """(height, width, bands) numbers."""
    height, width = tags[HEIGHT], tags[WIDTH]
    planes = bands if tags.get(PLANAR, 1) == 2 else 1
    tiled = TILES in tags
    block = (tags[TILE_HEIGHT], tags[TILE_WIDTH]) if tiled else (min(tags.get(ROWS, height), height), width)
    starts, sizes = (tags[TILES], tags[TILE_BYTES]) if tiled else (tags[STRIPS], tags[STRIP_BYTES])
    corners = [
        (plane, y, x) for plane in range(planes) for y in range(0, height, block[0]) for x in range(0, width, block[1])
    ]
    values = np.zeros((height, width, bands), dtype.newbyteorder("="))
    for (plane, y, x), start, size in zip(corners, starts, sizes, strict=True):
        rows = block[0] if tiled else min(block[0], height - y)
        part = _block(data[start : start + size], tags, dtype, (rows, block[1], bands // planes))
        part = part[: height - y, : width - x]
        where = slice(plane, plane + 1) if planes > 1 else slice(None)
        values[y : y + part.shape[0], x : x + part.shape[1], where] = part
    return values


def _block(data: bytes, tags: dict, dtype: np.dtype, shape: tuple[int, int, int]) -> np.ndarray:
    """One strip or tile as an array (rows, columns, bands)."""
    compression, predictor = tags.get(COMPRESSION, UNCOMPRESSED), tags.get(PREDICTOR, 1)
    if compression not in (UNCOMPRESSED, *DEFLATED) or predictor not in (1, FLOAT_PREDICTOR):
        raise UnreadForm(f"compression {compression} with predictor {predictor} is not read for such numbers")
    data = zlib.decompress(data) if compression in DEFLATED else data
    if predictor == FLOAT_PREDICTOR:  # each row: byte planes from most to least significant, as differences
        bytes_of_rows = np.frombuffer(data, np.uint8).reshape(shape[0], -1)
        differences = bytes_of_rows.reshape(shape[0], -1, shape[2]).cumsum(axis=1, dtype=np.uint8)
        spread = differences.reshape(shape[0], dtype.itemsize, -1).transpose(0, 2, 1)
        return np.ascontiguousarray(spread).view(dtype.newbyteorder(">")).reshape(shape)
    return np.frombuffer(data, dtype, count=int(np.prod(shape))).reshape(shape)
