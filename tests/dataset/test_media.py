"""Every picture leaves the loader as upright 8-bit RGB; every file that cannot be decoded is one kind of error."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageOps

from dataset.dataset_grpo import load_media, read_row, rows_from_records
from dataset.media import MediaError, load_image, load_video

av = pytest.importorskip("av")


def saved(path, image, **options):
    image.save(path, **options)
    return path


def pixels(path):
    image = load_image(path)
    assert image.mode == "RGB"
    return np.asarray(image)


# --- files that are no pictures ---------------------------------------------------------------------------------------


def test_a_cut_jpeg_opens_but_is_refused_with_its_path(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    whole = saved(tmp_path / "whole.jpg", Image.fromarray(noise)).read_bytes()
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(whole[: len(whole) // 2])
    assert Image.open(cut).size == (64, 64)  # opening reads the header only
    with pytest.raises(MediaError, match=r"cut\.jpg cannot be decoded"):
        load_image(cut)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"", "0 bytes"),
        (b"<html><body>404</body></html>", "is not a picture"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "cannot be decoded|is not a picture"),
    ],
)
def test_missing_empty_and_foreign_files(tmp_path, content, words):
    path = tmp_path / "photo.jpg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MediaError, match=words) as error:
        load_image(path)
    assert str(path) in str(error.value)


def test_a_folder_is_no_picture(tmp_path):
    with pytest.raises(MediaError, match="is a folder"):
        load_image(tmp_path)


def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = saved(tmp_path / "large.png", Image.new("L", (60, 60)))
    for limit in (3000, 1000):  # Pillow only warns up to twice the limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(MediaError, match=f"more than the {limit} pixels"):
            load_image(path)


def test_a_sliver_that_the_processor_would_refuse_is_named(tmp_path):
    path = saved(tmp_path / "sliver.png", Image.new("RGB", (402, 2)))
    with pytest.raises(MediaError, match=r"sliver\.png is 402x2"):
        load_image(path)


# --- orientation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_all_exif_orientations_give_the_upright_picture(tmp_path, orientation, suffix):
    upright = Image.new("RGB", (16, 24), "white")
    upright.paste("red", (0, 0, 8, 12))  # top left
    upright.paste("blue", (8, 12, 16, 24))  # bottom right
    # What a camera held that way stores: the inverse of what makes the picture upright.
    inverse = {5: 5, 6: 8, 7: 7, 8: 6}.get(orientation, orientation)
    exif = Image.Exif()
    exif[0x0112] = inverse
    stored = upright.copy()
    stored.getexif()[0x0112] = inverse
    stored = ImageOps.exif_transpose(stored)
    exif[0x0112] = orientation
    path = saved(tmp_path / f"photo.{suffix}", stored, exif=exif, **({"quality": 95} if suffix == "jpg" else {}))

    loaded = load_image(path)
    assert loaded.size == (16, 24)
    assert np.abs(np.asarray(loaded).astype(int)[2, 2] - (255, 0, 0)).max() < 40
    assert np.abs(np.asarray(loaded).astype(int)[-2, -2] - (0, 0, 255)).max() < 40


def test_orientation_cannot_be_applied_twice(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(tmp_path / "photo.jpg", Image.new("RGB", (24, 16)), exif=exif)
    loaded = load_image(path)
    assert loaded.size == (16, 24)
    assert ImageOps.exif_transpose(loaded).size == (16, 24)  # what transformers' image loader does


# --- colour modes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparency_is_composited_on_white(tmp_path, mode):
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 255))
    if mode == "PA":
        image = image.quantize(4)  # a palette with transparent entries
    elif mode == "LA":
        image = image.convert("LA")
    assert pixels(saved(tmp_path / "glyph.png", image)).tolist() == [[[255, 255, 255], [0, 0, 0]]]


def test_half_transparency_is_blended(tmp_path):
    path = saved(tmp_path / "half.png", Image.new("RGBA", (1, 1), (0, 0, 0, 128)))
    assert pixels(path)[0, 0].tolist() == [127, 127, 127]


def test_a_transparent_colour_of_rgb_and_grey_is_white(tmp_path):
    rgb = saved(tmp_path / "rgb.png", Image.new("RGB", (1, 1), (9, 9, 9)), transparency=(9, 9, 9))
    grey = saved(tmp_path / "grey.png", Image.new("L", (1, 1), 9), transparency=9)
    assert pixels(rgb).tolist() == pixels(grey).tolist() == [[[255, 255, 255]]]


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_16_bit_grey_is_scaled_by_its_range(tmp_path, dtype):
    ramp = np.arange(0, 63001, 1000, dtype=np.uint16).reshape(8, 8)
    image = Image.frombytes("I;16" if dtype == "<u2" else "I;16B", (8, 8), ramp.astype(dtype).tobytes())
    got = pixels(saved(tmp_path / "ramp.tif", image))
    assert len(np.unique(got)) == 64
    assert got.max() == 245  # 63000 of 65535


def test_16_bit_png_and_pgm_agree(tmp_path):
    ramp = np.arange(0, 63001, 1000, dtype=np.uint16).reshape(8, 8)
    png = saved(tmp_path / "ramp.png", Image.fromarray(ramp))
    pgm = tmp_path / "ramp.pgm"
    pgm.write_bytes(b"P5 8 8 65535\n" + ramp.astype(">u2").tobytes())
    assert Image.open(pgm).mode != "L"
    assert (pixels(png) == pixels(pgm)).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 100.0, 255.0], [0, 100, 255]),
        ([0.0, 25700.0, 65535.0], [0, 100, 255]),
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([float("nan"), float("inf"), 1.0], [0, 0, 255]),
        ([0.0, 0.0, 0.0], [0, 0, 0]),
    ],
)
def test_float_pictures(tmp_path, values, expected):
    path = saved(tmp_path / "depth.tif", Image.fromarray(np.array([values], dtype=np.float32)))
    assert pixels(path)[0, :, 0].tolist() == expected


def test_32_bit_integers_beyond_16_bit_are_stretched(tmp_path):
    path = saved(tmp_path / "depth.tif", Image.fromarray(np.array([[0, 100_000, 200_000]], dtype=np.int32)))
    assert pixels(path)[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("mode", "colour", "suffix", "expected"),
    [
        ("CMYK", (0, 0, 0, 0), "tif", (255, 255, 255)),
        ("1", 1, "png", (255, 255, 255)),
        ("L", 7, "png", (7, 7, 7)),
        ("P", 0, "gif", (0, 0, 0)),
    ],
)
def test_other_modes(tmp_path, mode, colour, suffix, expected):
    assert pixels(saved(tmp_path / f"x.{suffix}", Image.new(mode, (4, 4), colour)))[0, 0].tolist() == list(expected)


# --- video ------------------------------------------------------------------------------------------------------------


def write_video(path, frames, rate=10, rotation=0, options=None):
    """Frames of growing brightness, the left half of each in white."""
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        if rotation:
            stream.set_display_rotation(rotation)
        for index in range(frames):
            array = np.full((32, 64, 3), 255 * index // max(frames, 1), dtype=np.uint8)
            array[:, :32] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(array, format="rgb24")))
        container.mux(stream.encode())
    return path


def test_five_frames_become_six(tmp_path):
    frames = load_video(write_video(tmp_path / "clip.mp4", 5), fps=10)
    assert [(frame.mode, frame.size) for frame in frames] == [("RGB", (64, 32))] * 6
    assert (np.asarray(frames[4]) == np.asarray(frames[5])).all()
    assert frames.fps == pytest.approx(10)


def test_frames_are_spread_over_the_clip_and_the_rate_follows(tmp_path):
    path = write_video(tmp_path / "clip.mp4", 40, rate=10)
    frames = load_video(path, fps=2)
    assert len(frames) == 8
    assert frames.fps == pytest.approx(2)
    brightness = [np.asarray(frame)[:, 40:].mean() for frame in frames]
    assert brightness == sorted(brightness)
    assert brightness[0] < 15
    assert brightness[-1] > 235
    few = load_video(path, fps=10, max_frames=4)
    assert (len(few), few.fps) == (4, pytest.approx(1))


def test_one_frame_makes_a_pair(tmp_path):
    assert len(load_video(write_video(tmp_path / "clip.mp4", 1))) == 2


def test_a_container_without_a_frame_count(tmp_path):
    frames = load_video(write_video(tmp_path / "clip.mkv", 20), fps=2)
    assert (len(frames), frames.fps) == (4, pytest.approx(2))


def test_a_clip_filmed_upright_is_turned(tmp_path):
    frames = load_video(write_video(tmp_path / "clip.mp4", 4, rotation=-90))
    dark = np.asarray(frames[0])
    assert frames[0].size == (32, 64)
    # Turned clockwise, the white left half stands at the top.
    assert dark[:24].mean() > 200
    assert dark[-24:].mean() < 60


def test_videos_that_cannot_be_used(tmp_path):
    whole = write_video(tmp_path / "clip.mp4", 20).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "page.mp4").write_bytes(b"<html></html>")
    (tmp_path / "empty.mp4").write_bytes(b"")
    for name in ("cut.mp4", "page.mp4", "empty.mp4", "missing.mp4"):
        with pytest.raises(MediaError, match=name):
            load_video(tmp_path / name)


def test_a_cut_stream_is_not_a_shorter_clip(tmp_path):
    # With the index at the front, a file that ends between two frames opens and decodes without an error.
    whole = write_video(tmp_path / "clip.mp4", 40, options={"movflags": "faststart"})
    with av.open(str(whole)) as container:
        starts = [packet.pos for packet in container.demux(video=0) if packet.size]
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole.read_bytes()[: starts[20]])
    with av.open(str(cut)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 20
    with pytest.raises(MediaError, match=r"cut\.mp4 is cut off: it has 2 s of the 4 s that its header says"):
        load_video(cut)


def test_a_file_without_a_picture_stream(tmp_path):
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), dtype=np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(MediaError, match="no video stream"):
        load_video(path)


# --- a row ------------------------------------------------------------------------------------------------------------


def test_a_row_gives_its_media_in_order_and_names_itself_on_failure(tmp_path):
    paths = [str(saved(tmp_path / f"{width}.png", Image.new("RGB", (width, 9)))) for width in (11, 12, 13)]
    record = {"id": "r7", "images": paths, "videos": [str(write_video(tmp_path / "clip.mp4", 4))]}
    images, videos = load_media(record)
    assert [image.width for image in images] == [11, 12, 13]
    assert [len(frames) for frames in videos] == [4]
    assert load_media({"id": "text", "images": [], "videos": []}) == ([], [])

    (tmp_path / "12.png").write_bytes(b"")
    with pytest.raises(MediaError, match=r"record 'r7': .*12\.png is empty"):
        load_media(record)


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "page", "cut"])
def test_a_bad_picture_can_be_left_to_the_decoder(tmp_path, kind):
    whole = saved(tmp_path / "a.png", Image.new("RGB", (9, 9))).read_bytes()
    bad = tmp_path / "bad.png"
    if kind == "folder":
        bad.mkdir()
    elif kind != "missing":
        bad.write_bytes({"empty": b"", "page": b"<html>", "cut": whole[: len(whole) // 2]}[kind])
    names = ["a.png", "bad.png", "a.png", "a.png"]
    data = [{"question": "Where?", "answer": 1, "question_type": "path", "image": name} for name in names]
    tasks = {"path": SimpleNamespace(config={"grpo_template": "{Question}"}, thought_end="</think>")}
    rows = rows_from_records(data, tasks, image_root=tmp_path, on_bad_media="skip")
    usable, reported = [], []
    for row in map(read_row, rows):
        try:
            usable.append(load_media(row))
        except MediaError as error:
            reported.append(str(error))
    assert len(usable) == 3
    assert len(reported) == 1
    assert reported[0].startswith("record 'record:1': ")
    assert str(bad) in reported[0]
