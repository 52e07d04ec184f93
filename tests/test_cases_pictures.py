"""From a file on a disk to a scored answer: damaged files of every format, all orientations, every frame."""

import io
import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from dataset.dataset_grpo import load_media, read_row, rows_from_records
from dataset.media import MediaError, load_image, load_video
from task.processing_utils import scale_bbox_xyxy
from task.rewards.frames import from_frame, to_frame
from task.rewards.router import reward_arguments
from task.task_loader import Task, load_tasks

av = pytest.importorskip("av")
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))


def encoded(kind: str, image=NOISE, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


# --- damaged files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA", "JPEG2000"])
def test_a_cut_file_of_any_format_is_refused_by_name(tmp_path, kind, share):
    whole = encoded(kind)
    path = tmp_path / f"photo.{kind.lower()}"
    path.write_bytes(whole)
    assert load_image(path).size == (64, 64)
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(MediaError) as error:
        load_image(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>',
        b"%PDF-1.4\n",
        b"\0" * 5000,
        b"\xff\xd8",
        b"RIFF\0\0\0\0WEBP",
        b'{"detail": "not found"}',
        encoded("JPEG", progressive=True)[:2000],
    ],
)
def test_what_a_download_leaves_behind_is_no_picture(tmp_path, content):
    path = tmp_path / "photo.jpg"
    path.write_bytes(content)
    with pytest.raises(MediaError, match=r"photo\.jpg"):
        load_image(path)


def test_a_link_to_nothing_and_a_wrong_ending(tmp_path):
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "never.jpg")
    with pytest.raises(MediaError, match=r"gone\.jpg does not exist"):
        load_image(tmp_path / "gone.jpg")
    (tmp_path / "really_png.jpg").write_bytes(encoded("PNG"))
    assert np.array_equal(load_image(tmp_path / "really_png.jpg"), NOISE)


def test_one_cut_jpeg_of_four_rows_leaves_three_and_is_named(tmp_path):
    whole = encoded("JPEG")
    for name in "abcd":
        (tmp_path / f"{name}.jpg").write_bytes(whole[: len(whole) // 2] if name == "b" else whole)
    data = [
        {"id": name, "question": "q", "question_type": "trajectory-sharerobot", "answer": None, "image": f"{name}.jpg"}
        for name in "abcd"
    ]
    usable, refused = [], []
    for row in rows_from_records(data, load_tasks(), image_root=str(tmp_path)):
        try:
            usable.append(load_media(read_row(row))[0][0].size)
        except MediaError as error:
            refused.append(str(error))
    assert usable == [(64, 64)] * 3
    assert len(refused) == 1
    assert refused[0].startswith("record 'b': ") and "b.jpg" in refused[0]


# --- colour -----------------------------------------------------------------------------------------------------------


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


# --- orientation and frames -------------------------------------------------------------------------------------------

UPRIGHT, LABEL = (96, 160), [12, 20, 60, 52]
INVERSE = {5: 5, 6: 8, 7: 7, 8: 6}


def photo(path, orientation: int) -> None:
    """A portrait with a red box at LABEL, stored as a camera held that way stores it; orientation 0 means no tag."""
    image = Image.new("RGB", UPRIGHT, "white")
    image.paste("red", tuple(LABEL))
    if not orientation:
        image.save(path)
        return
    image.getexif()[0x0112] = INVERSE.get(orientation, orientation)
    stored = ImageOps.exif_transpose(image)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(path, exif=exif)


def iou(a, b) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_box_labelled_as_displayed_scores_one_after_the_whole_way(tmp_path, tiny_vlm, orientation):
    module = tiny_vlm[0]
    photo(tmp_path / "a.png", orientation)
    photo(tmp_path / "plain.png", 0)
    corners = [[12.0, 20.0], [60.0, 52.0]]
    data = [
        {"id": name, "question": "q", "question_type": "trajectory-sharerobot", "answer": corners, "image": name}
        for name in ("a.png", "plain.png")
    ]
    tasks = load_tasks()
    records = [read_row(row) for row in rows_from_records(data, tasks, image_root=str(tmp_path))]
    prompts = [module.encode(record["messages"], *load_media(record)) for record in records]
    assert prompts[0].media_key == prompts[1].media_key, "the model sees the photograph upright"
    assert prompts[0].image_sizes == [UPRIGHT]

    processed = prompts[0].processed_sizes[0]
    assert processed == (84, 168)
    seen = to_frame(LABEL, "processed", UPRIGHT, processed)
    assert seen == pytest.approx([12 * 84 / 96, 20 * 168 / 160, 60 * 84 / 96, 52 * 168 / 160])
    assert iou(from_frame(seen, "processed", UPRIGHT, processed), LABEL) == pytest.approx(1.0)
    assert iou(seen, LABEL) < 0.9, "without the way back it would not be 1"

    task = tasks["trajectory-sharerobot"]
    sol, keywords = reward_arguments(task, records[0], prompts[0].image_sizes[0], processed)
    completion = f"<think>t</think><answer>{json.dumps([seen[:2], seen[2:]])}</answer>"
    assert task.accuracy_reward(completion, sol, **keywords)[0] == pytest.approx(1.0)


SIZES = [(5, 7), (27, 27), (29, 41), (200, 1), (640, 480), (481, 641), (4000, 3000), (100, 20000)]


@pytest.mark.parametrize("size", SIZES)
def test_an_answer_keeps_its_place_in_every_frame_and_size(tiny_vlm, size):
    """Pictures smaller than a cell, slivers, and those over the pixel budget: the actual grid gives the frame."""
    module = tiny_vlm[0]
    turn = [{"role": "user", "content": [{"type": "image", "index": 0}, {"type": "text", "text": "?"}]}]
    processed = module.encode(turn, [Image.new("RGB", size)]).processed_sizes[0]
    assert all(side % 28 == 0 for side in processed)
    box = [0.1 * size[0], 0.25 * size[1], 0.9 * size[0], size[1]]
    for frame, plane in {"original": size, "processed": processed, "norm1000": (1000, 1000)}.items():
        moved = to_frame(box, frame, size, processed)
        assert moved == pytest.approx([0.1 * plane[0], 0.25 * plane[1], 0.9 * plane[0], plane[1]])
        assert from_frame(moved, frame, size, processed) == pytest.approx(box)
        config = {"frame": frame}
        task = Task("t", None, config, unused, unused, process_answer=scale_bbox_xyxy)
        sol, _ = reward_arguments(task, {"question_type": "t", "answer": box}, size, processed)
        assert sol == pytest.approx(moved)


def unused(completion, sol, **kw):
    raise AssertionError("only the frame is asked for")


def test_a_clip_too_narrow_for_the_processor_is_named(tmp_path):
    path = tmp_path / "strip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width, stream.height, stream.pix_fmt = 802, 2, "yuv420p"
        for _ in range(4):
            container.mux(stream.encode(av.VideoFrame(802, 2, "yuv420p")))
        container.mux(stream.encode())
    with pytest.raises(MediaError, match=r"video .*strip\.mp4 is 802x2: no side may be over 200 times the other"):
        load_video(path)
