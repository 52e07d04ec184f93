"""TIFFs of several pages, and of numbers that Pillow does not read."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from dataset.media import MediaError, load_image

RAMP = np.array([[0.0, 0.2, 0.4], [0.6, 0.8, 1.0]])
COLOURS = np.stack([RAMP, RAMP[::-1], RAMP * 0], -1)
KINDS = {"f": 3, "i": 2, "u": 1}


def tiff(values: np.ndarray, order="<", predictor=1, compression=1, planar=False, tags=(), rows=1) -> bytes:
    """A TIFF of (height, width) or (height, width, bands) numbers, in strips of `rows` rows."""
    height, width, *bands = values.shape
    bands = bands[0] if bands else 1
    values = values.reshape(height, width, bands).astype(values.dtype.newbyteorder(order))
    planes = [values[..., band : band + 1] for band in range(bands)] if planar else [values]
    strips = [plane[y : y + rows] for plane in planes for y in range(0, height, rows)]
    data = [_predicted(strip) if predictor == 3 else strip.tobytes() for strip in strips]
    data = [zlib.compress(strip) for strip in data] if compression == 8 else data
    fields = {256: [width], 257: [height], 258: [8 * values.itemsize] * bands, 259: [compression]}
    fields |= {262: [2 if bands > 2 else 1], 277: [bands], 278: [rows], 284: [2 if planar else 1], 317: [predictor]}
    fields |= {339: [KINDS[values.dtype.kind]] * bands, 279: [len(strip) for strip in data], 273: [0] * len(data)}
    fields |= dict(tags)
    places, at = {}, 8 + 2 + 12 * len(fields) + 4
    for tag, numbers in sorted(fields.items()):
        places[tag] = at
        at += 4 * len(numbers) if len(numbers) > 1 else 0
    fields[273] = [at + sum(map(len, data[:number])) for number in range(len(data))]
    entries, rest = b"", b""
    for tag, numbers in sorted(fields.items()):
        one = len(numbers) == 1
        entries += struct.pack(f"{order}HHII", tag, 4, len(numbers), numbers[0] if one else places[tag])
        rest += b"" if one else struct.pack(f"{order}{len(numbers)}I", *numbers)
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(fields))
    return start + entries + struct.pack(f"{order}I", 0) + rest + b"".join(data)


def _predicted(strip: np.ndarray) -> bytes:
    """Adobe's floating point predictor: the rows' bytes by significance, then differences between neighbours."""
    height, width, bands = strip.shape
    ordered = strip.astype(strip.dtype.newbyteorder(">")).view(np.uint8).reshape(height, width * bands, -1)
    ordered = ordered.transpose(0, 2, 1).reshape(height, -1, bands)
    return np.diff(ordered, axis=1, prepend=np.uint8(0)).astype(np.uint8).tobytes()


def pixels(tmp_path, content: bytes) -> np.ndarray:
    (tmp_path / "a.tif").write_bytes(content)
    return np.asarray(load_image(tmp_path / "a.tif"), dtype=int)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("options", [{}, {"compression": 8}, {"predictor": 3, "compression": 8}, {"rows": 2}])
def test_floats_of_any_size_in_one_band_and_in_three(tmp_path, dtype, order, options):
    assert pixels(tmp_path, tiff(RAMP.astype(dtype), order, **options))[..., 0].tolist() == [
        [0, 51, 102],
        [153, 204, 255],
    ]
    colours = pixels(tmp_path, tiff(COLOURS.astype(dtype), order, **options))
    assert np.abs(colours - COLOURS * 255).max() <= 0.5
    planar = tiff(COLOURS.astype(dtype), order, planar=True, **options)
    assert (pixels(tmp_path, planar) == colours).all()


def test_the_whites_of_floats_and_wide_integers(tmp_path):
    for white in (255, 65535):
        assert (pixels(tmp_path, tiff(COLOURS.astype("f4") * white))[..., 0] == [[0, 51, 102], [153, 204, 255]]).all()
    assert pixels(tmp_path, tiff((RAMP * 10 - 5).astype("f8")))[..., 0].tolist() == [[0, 51, 102], [153, 204, 255]]
    for dtype in ("u8", "i8"):  # 64 bits
        assert pixels(tmp_path, tiff((RAMP * 255).astype(dtype)))[..., 0].tolist() == [[0, 51, 102], [153, 204, 255]]
        wide = pixels(tmp_path, tiff((RAMP * 4e9).astype(dtype)))
        assert wide[..., 0].tolist() == [[0, 51, 102], [153, 204, 255]]
    signed = np.array([[-128, 0, 127]], dtype="i1")
    assert pixels(tmp_path, tiff(signed))[0, :, 0].tolist() == [0, 128, 255]
    nan = np.array([[np.nan, np.inf, 1.0]], dtype="f8")
    assert pixels(tmp_path, tiff(nan))[0, :, 0].tolist() == [0, 0, 255]


def test_alpha_orientation_and_white_is_zero(tmp_path):
    see_through = np.concatenate([COLOURS, RAMP[..., None] > 0.5], -1).astype("f4")
    got = pixels(tmp_path, tiff(see_through, tags={338: [2]}))
    assert (got[0] == 255).all() and np.abs(got[1] - COLOURS[1] * 255).max() <= 0.5
    assert pixels(tmp_path, tiff(RAMP, tags={274: [6]})).shape == (3, 2, 3)
    assert pixels(tmp_path, tiff(RAMP, tags={262: [0]}))[..., 0].tolist() == [[255, 204, 153], [102, 51, 0]]


def test_the_same_pixels_as_tifffile_writes(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    tall = np.tile(COLOURS, (20, 15, 1)).astype("f4")
    for options in ({}, {"tile": (16, 16)}, {"bigtiff": True}, {"byteorder": ">"}, {"rowsperstrip": 7}):
        tifffile.imwrite(tmp_path / "b.tif", tall, photometric="rgb", **options)
        assert np.abs(np.asarray(load_image(tmp_path / "b.tif"), dtype=int) - tall * 255).max() <= 0.5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tiff(RAMP.astype("f4"), tags={339: [6], 258: [64]}), "numbers of 64 bits in sample format 6 are not read"),
        (tiff(COLOURS.astype("f4"), tags={259: [34887]}), "compression 34887 with predictor 1 is not read"),
        (tiff(np.zeros((2, 2, 5), "f4")), "5 bands of photometric kind 2 are no grey and no RGB picture"),
    ],
)
def test_a_form_that_is_not_read_is_said(tmp_path, content, words):
    with pytest.raises(MediaError, match=rf"a\.tif is a TIFF of a form that is not read \({words}.*save it as PNG"):
        pixels(tmp_path, content)


def test_a_cut_off_float_tiff_is_damaged(tmp_path, monkeypatch):
    for content in (tiff(COLOURS)[:-9], tiff(COLOURS, compression=8)[:-9]):
        with pytest.raises(MediaError, match=r"a\.tif cannot be decoded \(its data are damaged\): replace the file"):
            pixels(tmp_path, content)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2)
    with pytest.raises(MediaError, match="more than the 2 pixels"):
        pixels(tmp_path, tiff(COLOURS))


def test_several_pages_are_no_picture(tmp_path):
    pages = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green")]
    pages[0].save(tmp_path / "scan.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(MediaError, match=r"scan\.tif has 3 pages, and a picture is one: save the pages as files"):
        load_image(tmp_path / "scan.tif")
    pages[0].save(tmp_path / "one.tif")
    assert load_image(tmp_path / "one.tif").getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("tags", [{254: 1}, {254: 4}, {254: 5}, {255: 2}])
def test_a_thumbnail_and_a_mask_are_no_page(tmp_path, tags):
    small = Image.new("RGB", (4, 4), "blue")
    small.encoderinfo = {"tiffinfo": tags}
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.tif", save_all=True, append_images=[small])
    assert Image.open(tmp_path / "a.tif").n_frames == 2
    assert load_image(tmp_path / "a.tif").getpixel((0, 0)) == (255, 0, 0)


def test_decoders_write_nothing_on_standard_error(tmp_path, capfd):
    Image.effect_noise((64, 64), 50).save(tmp_path / "whole.tif", compression="tiff_lzw")
    whole = (tmp_path / "whole.tif").read_bytes()
    (tmp_path / "holed.tif").write_bytes(whole[:100] + bytes(3000) + whole[3100:])
    (tmp_path / "cut.tif").write_bytes(whole[: len(whole) // 2])
    for name in ("holed.tif", "cut.tif"):
        with pytest.raises(MediaError, match=name):
            load_image(tmp_path / name)
    assert capfd.readouterr().err == ""
