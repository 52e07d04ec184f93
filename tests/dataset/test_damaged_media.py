"""Damaged, cut and missing files, and files of an unknown kind, are refused by name."""

import numpy as np
import pytest
from picture_cases import NOISE, encoded

from dataset.dataset_grpo import load_media, read_row, rows_from_records
from dataset.media import MediaError, load_image, load_video
from task.task_loader import load_tasks


def test_a_kind_of_picture_that_is_not_read_is_not_called_none(tmp_path):
    (tmp_path / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 100)
    with pytest.raises(MediaError, match=r"heic is not a picture of a known kind .* or save it as PNG or JPEG"):
        load_image(tmp_path / "phone.heic")


@pytest.mark.parametrize("name", ["x" * 5000 + ".png", "x\0.png", "\ud800.png"])
@pytest.mark.parametrize("load", [load_image, load_video])
def test_a_name_that_no_file_can_have_is_a_missing_file(load, name):
    with pytest.raises(MediaError, match="does not exist"):
        load(name)


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
