"""Alpha channels that programs leave empty, and colour profiles."""

import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from dataset.media import load_image

BGR = bytes((10, 20, 200))
P3 = ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407))  # for D50, as sRGB
SRGB = ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410))


def bmp(alphas, header: int) -> bytes:
    """Two pixels of 32 bits; a header of 124 bytes and one of 56 say where the alpha channel is, one of 40 does not."""
    masks = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000) if header > 40 else b""
    form = struct.pack("<IiiHHIIiiII", header, 2, 1, 1, 32, 3 if masks else 0, 8, 2835, 2835, 0, 0)
    pixels = b"".join(BGR + bytes((alpha,)) for alpha in alphas)
    start = 14 + header
    return b"BM" + struct.pack("<IHHI", start + 8, 0, 0, start) + (form + masks).ljust(header, b"\0") + pixels


def tga(alphas, alpha_bits: int) -> bytes:
    header = struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, 2, 1, 32, 0x20 | alpha_bits)
    return header + b"".join(BGR + bytes((alpha,)) for alpha in alphas)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("v5.bmp", bmp((0, 0), 124)),
        ("v3.bmp", bmp((0, 0), 56)),
        ("v1.bmp", bmp((0, 0), 40)),
        ("a.tga", tga((0, 0), 8)),
        ("b.tga", tga((0, 0), 0)),
    ],
)
def test_an_alpha_channel_left_empty_is_none(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert np.asarray(load_image(tmp_path / name)).tolist() == [[[200, 20, 10]] * 2]


@pytest.mark.parametrize(("name", "content"), [("v5.bmp", bmp((0, 255), 124)), ("a.tga", tga((0, 255), 8))])
def test_an_alpha_channel_in_use_counts(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert np.asarray(load_image(tmp_path / name)).tolist() == [[[255, 255, 255], [200, 20, 10]]]


@pytest.mark.parametrize("ending", ["png", "webp", "tif"])
def test_where_alpha_is_always_meant_an_empty_picture_is_empty(tmp_path, ending):
    Image.new("RGBA", (2, 2), (200, 20, 10, 0)).save(tmp_path / f"a.{ending}")
    assert load_image(tmp_path / f"a.{ending}").getcolors() == [(4, (255, 255, 255))]


def profile(primaries=P3, gamma=2.2, space=b"RGB ") -> bytes:
    """An ICC profile of version 2: a matrix of primaries and one curve, or for GRAY the curve alone."""
    curve = b"curv" + struct.pack(">IIH", 0, 1, round(gamma * 256)) + b"\0\0"

    def place(values):
        return b"XYZ " + struct.pack(">Iiii", 0, *(round(value * 65536) for value in values))

    tags = {b"desc": b"desc" + struct.pack(">II", 0, 2) + b"p\0" + bytes(78), b"cprt": b"text" + bytes(8)}
    tags[b"wtpt"] = place((0.9642, 1.0, 0.8249))
    if space == b"GRAY":
        tags[b"kTRC"] = curve
    else:
        tags |= {name: place(values) for name, values in zip((b"rXYZ", b"gXYZ", b"bXYZ"), primaries, strict=True)}
        tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    table, data = b"", b""
    for name, value in tags.items():
        value += bytes(-len(value) % 4)
        table += name + struct.pack(">II", 132 + 12 * len(tags) + len(data), len(value))
        data += value
    size = 132 + len(table) + len(data)
    head = struct.pack(">IIIIII", size, 0, 0x02400000, *struct.unpack(">III", b"mntr" + space + b"XYZ "))
    head = head + bytes(12) + b"acsp" + bytes(28) + struct.pack(">iii", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + data


def in_srgb(colour, gamma=2.2) -> np.ndarray:
    """A colour of `profile()` in sRGB, by its definition (IEC 61966-2-1)."""
    light = (np.array(colour) / 255) ** gamma @ np.array(P3) @ np.linalg.inv(SRGB)
    light = light.clip(0, 1)
    return 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


COLOURS = [(200, 100, 50), (100, 150, 100), (30, 60, 120), (128, 128, 128), (90, 200, 190)]


@pytest.mark.parametrize("ending", ["png", "jpg", "tif", "webp"])
def test_a_wide_gamut_picture_comes_in_srgb(tmp_path, ending):
    options = {"webp": {"lossless": True}, "jpg": {"quality": 100, "subsampling": 0}}.get(ending, {})
    moved = 0
    for colour in COLOURS:
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"a.{ending}", icc_profile=profile(), **options)
        got = np.asarray(load_image(tmp_path / f"a.{ending}"), dtype=int)[4, 4]
        assert np.abs(got - in_srgb(colour)).max() < 2.5
        moved = max(moved, np.abs(got - colour).max())
    assert moved > 9


def test_profiles_of_transparent_palette_and_grey_pictures(tmp_path):
    colour = COLOURS[0]
    image = Image.new("RGBA", (2, 1), (*colour, 255))
    image.putpixel((1, 0), (*colour, 0))
    image.save(tmp_path / "a.png", icc_profile=profile())
    got = np.asarray(load_image(tmp_path / "a.png"), dtype=int)[0]
    assert np.abs(got[0] - in_srgb(colour)).max() < 2.5 and got[1].tolist() == [255] * 3
    Image.new("RGB", (2, 1), colour).quantize(2).save(tmp_path / "p.png", icc_profile=profile())
    assert np.abs(np.asarray(load_image(tmp_path / "p.png"), dtype=int)[0, 0] - in_srgb(colour)).max() < 2.5
    Image.new("L", (2, 1), 128).save(tmp_path / "g.png", icc_profile=profile(gamma=1.0, space=b"GRAY"))
    assert np.abs(np.asarray(load_image(tmp_path / "g.png"), dtype=int)[0, 0] - 188).max() <= 1  # half the light


def test_a_profile_that_says_srgb_or_nothing_changes_no_pixel(tmp_path):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for name, said in {"srgb": srgb, "broken": b"no profile", "grey": profile(space=b"GRAY")}.items():
        noise.save(tmp_path / f"{name}.png", icc_profile=said)
        assert (np.asarray(load_image(tmp_path / f"{name}.png")) == np.asarray(noise)).all()


def test_lab_is_read_as_lab(tmp_path):
    lab = ImageCms.profileToProfile(
        Image.new("RGB", (4, 4), (200, 100, 50)),
        ImageCms.createProfile("sRGB"),
        ImageCms.createProfile("LAB"),
        outputMode="LAB",
    )
    lab.save(tmp_path / "a.tif")
    assert np.abs(np.asarray(load_image(tmp_path / "a.tif"), dtype=int)[0, 0] - (200, 100, 50)).max() <= 3
