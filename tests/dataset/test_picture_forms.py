"""Pictures of every depth, colour space and transparency look as a viewer shows them."""

import struct
import zlib

import numpy as np
import pytest
from picture_cases import encoded
from PIL import Image

from dataset.media import load_image


def tiff(data: bytes, width: int, bits: int, sense: int = 1, sample_format: int = 1) -> bytes:
    """A grey TIFF of one row, written byte by byte; sense 0: the greatest number is black."""
    tags = {256: width, 257: 1, 258: bits, 259: 1, 262: sense, 277: 1, 278: 1, 279: len(data), 339: sample_format}
    tags[273] = 8 + 2 + 12 * (len(tags) + 1) + 4  # where the data start
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0) + data


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (tiff(np.array([0, 1000, 40000, 65535], "<u2").tobytes(), 4, 16), [0, 4, 156, 255]),
        (tiff(np.array([0, 1000, 40000, 65535], "<u2").tobytes(), 4, 16, sense=0), [255, 251, 99, 0]),
        (tiff(bytes([0x00, 0x0F, 0xFF, 0x80, 0x00, 0x10]), 4, 12), [0, 255, 128, 1]),
        (tiff(np.array([0, 2**30, 2**31, 2**32 - 1], "<u4").tobytes(), 4, 32), [0, 64, 128, 255]),
        (tiff(np.array([-100, 0, 300], "<i4").tobytes(), 3, 32, sample_format=2), [0, 64, 255]),
        (tiff(np.array([0.0, 0.5, 1.0], "<f4").tobytes(), 3, 32, sense=0, sample_format=3), [255, 127, 0]),
        (tiff(np.array([100_000] * 2, "<i4").tobytes(), 2, 32, sample_format=2), [0, 0]),
    ],
)
def test_grey_tiffs_are_read_as_their_tags_say(tmp_path, content, expected):
    (tmp_path / "scan.tif").write_bytes(content)
    assert np.asarray(load_image(tmp_path / "scan.tif"))[0, :, 0].tolist() == expected


def test_a_dark_16_bit_pgm_stays_dark(tmp_path):
    (tmp_path / "night.pgm").write_bytes(b"P5 3 1 65535\n" + np.array([0, 100, 255], ">u2").tobytes())
    assert np.asarray(load_image(tmp_path / "night.pgm"))[0, :, 0].tolist() == [0, 0, 1]


def png(width: int, depth: int, colour_type: int, row: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of one row, written byte by byte: Pillow saves few of these forms itself."""
    header = struct.pack(">IIBBBBB", width, 1, depth, colour_type, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return b"\x89PNG\r\n\x1a\n" + body


def grey16(*values: int) -> bytes:
    return struct.pack(f">{len(values)}H", *values)


PALETTE = (b"PLTE", bytes([255, 0, 0, 0, 0, 255]))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (png(2, 16, 0, grey16(1000, 40000)), [[4] * 3, [156] * 3]),
        (png(2, 16, 0, grey16(1000, 40000), (b"tRNS", grey16(1000))), [[255] * 3, [156] * 3]),
        (png(2, 16, 4, grey16(0, 0, 40000, 65535)), [[255] * 3, [156] * 3]),
        (png(2, 16, 6, grey16(65535, 0, 0, 0, 65535, 0, 0, 65535)), [[255] * 3, [255, 0, 0]]),
        (png(2, 16, 2, grey16(40000, 1000, 0, 65535, 0, 0)), [[156, 3, 0], [255, 0, 0]]),
        (png(2, 8, 0, b"\x09\x40", (b"tRNS", grey16(9))), [[255] * 3, [64] * 3]),
        (png(2, 1, 0, b"\x40"), [[0] * 3, [255] * 3]),
        (png(2, 1, 0, b"\x40", (b"tRNS", grey16(1))), [[0] * 3, [255] * 3]),
        (png(2, 4, 0, b"\x0f"), [[0] * 3, [255] * 3]),
        (png(2, 8, 3, b"\0\1", PALETTE), [[255, 0, 0], [0, 0, 255]]),
        (png(2, 8, 3, b"\0\1", PALETTE, (b"tRNS", b"\0")), [[255] * 3, [0, 0, 255]]),
        (png(2, 8, 3, b"\0\1", PALETTE, (b"tRNS", b"\xff\x80")), [[255, 0, 0], [127, 127, 255]]),
    ],
)
def test_every_form_of_png_shows_what_a_viewer_shows(tmp_path, content, expected):
    (tmp_path / "x.png").write_bytes(content)
    assert np.asarray(load_image(tmp_path / "x.png"))[0].tolist() == expected


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "TGA", "PNG"])
def test_a_black_glyph_on_a_transparent_ground_stays_readable(tmp_path, kind):
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (2, 2, 6, 6))
    (tmp_path / "glyph").write_bytes(encoded(kind, image, **({"lossless": True} if kind == "WEBP" else {})))
    colours = np.unique(np.asarray(load_image(tmp_path / "glyph")).reshape(-1, 3), axis=0).tolist()
    assert colours == [[0, 0, 0], [255, 255, 255]]


@pytest.mark.parametrize(
    ("mode", "kind", "colour", "expected"),
    [
        ("CMYK", "JPEG", (0, 0, 0, 0), (255, 255, 255)),
        ("CMYK", "JPEG", (0, 255, 255, 0), (255, 0, 0)),
        ("YCbCr", "TIFF", (255, 128, 128), (255, 255, 255)),
        ("RGBX", "TIFF", (255, 0, 0, 0), (255, 0, 0)),
        ("1", "TIFF", 1, (255, 255, 255)),
    ],
)
def test_colour_spaces(tmp_path, mode, kind, colour, expected):
    (tmp_path / "x").write_bytes(encoded(kind, Image.new(mode, (16, 16), colour), quality=100))
    assert np.abs(np.asarray(load_image(tmp_path / "x")).astype(int) - expected).max() <= 1
