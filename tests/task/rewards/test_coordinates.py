"""Points and boxes between the original picture, the processed picture and the 0-1000 grid."""

import pytest

from task.processing_utils import scale_bbox_xyxy, scale_points, scale_trajectory
from task.rewards.frames import frame_size, from_frame, processed_size, to_frame


def flat(value):
    return [number for one in value for number in one]


def iou(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def test_large_photo_box_in_the_frame_the_model_speaks():
    size, grid_size = (4000, 3000), processed_size((1, 38, 52))
    assert grid_size == (728, 532)
    truth = [1000, 600, 2000, 1800]
    seen = to_frame(truth, "processed", size, grid_size)
    assert seen == pytest.approx([182.0, 106.4, 364.0, 319.2])
    assert iou(seen, truth) == 0.0
    assert iou(from_frame(seen, "processed", size, grid_size), truth) == pytest.approx(1.0)
    assert iou(from_frame([182, 106, 364, 319], "processed", size, grid_size), truth) == pytest.approx(0.997, abs=5e-4)


@pytest.mark.slow
def test_the_processors_own_grid_gives_the_size():
    image_processing = pytest.importorskip("transformers.models.qwen2_vl.image_processing_qwen2_vl")
    height, width = image_processing.smart_resize(3000, 4000, factor=28, min_pixels=3136, max_pixels=401408)
    assert processed_size((1, height // 14, width // 14)) == (width, height) == (728, 532)


def test_another_pixel_budget_does_not_move_the_answer():
    truth = [[100.0, 200.0], [3000.0, 2500.0]]
    for grid in ((1, 38, 52), (1, 76, 104), (1, 20, 26)):
        seen = to_frame(truth, "processed", (4000, 3000), processed_size(grid))
        assert flat(from_frame(seen, "processed", (4000, 3000), processed_size(grid))) == pytest.approx(flat(truth))


def test_sharerobot_points():
    points = [[265.45, 120], [275.15, 162.42], [280, 213.33], [280, 259.39]]
    thousand = to_frame(points, "norm1000", (640, 480), (644, 476))
    assert flat(thousand) == pytest.approx([414.8, 250.0, 429.9, 338.4, 437.5, 444.4, 437.5, 540.4], abs=0.06)
    seen = to_frame(points, "processed", (640, 480), (644, 476))
    assert flat(seen) == pytest.approx([267.11, 119.00, 276.87, 161.07, 281.75, 211.56, 281.75, 257.23], abs=0.01)


def test_thousand_box():
    assert from_frame([500, 500, 750, 750], "norm1000", (640, 480), None) == [320, 240, 480, 360]
    assert from_frame([[500, 500, 750, 750]], "norm1000", (640, 480), None) == [[320, 240, 480, 360]]


def test_four_points_are_not_a_box():
    assert to_frame([[1, 1], [2, 2], [3, 3], [4, 4]], "norm1000", (1000, 500), None) == [[1, 2], [2, 4], [3, 6], [4, 8]]


def test_frames():
    assert frame_size("original", (640, 480), (644, 476)) == (640, 480)
    assert frame_size("processed", (640, 480), (644, 476)) == (644, 476)
    assert frame_size("norm1000", (640, 480), (644, 476)) == (1000, 1000)
    assert frame_size("none", (640, 480), (644, 476)) is None
    assert frame_size("norm1000", None, None) is None  # no picture, nothing to place
    assert to_frame("seven", "none", None, None) == "seven"
    with pytest.raises(ValueError, match="frame 'pixels' is unknown"):
        frame_size("pixels", (1, 1), (1, 1))
    with pytest.raises(ValueError, match="needs a picture"):
        to_frame([1, 2], "processed", None, None)


def test_scalers_take_one_or_many():
    assert scale_points([1, 2], (10, 10), (20, 30)) == [2.0, 6.0]
    assert scale_points([[1, 2]], (10, 10), (20, 30)) == [[2.0, 6.0]]
    assert scale_points([], (10, 10), (20, 30)) == []
    assert scale_bbox_xyxy([1, 2, 3, 4], (10, 10), (20, 30)) == [2.0, 6.0, 6.0, 12.0]
    assert scale_trajectory([(1, 2), (3, 4)], (10, 10), (20, 30)) == [[2.0, 6.0], [6.0, 12.0]]


@pytest.mark.parametrize(
    ("scale", "value"),
    [
        (scale_points, [1, 2, 3]),
        (scale_points, [[1, 2], [3]]),
        (scale_points, [[1, "2"]]),
        (scale_points, [[1, float("nan")]]),
        (scale_points, [[True, 2]]),
        (scale_points, "12"),
        (scale_points, None),
        (scale_trajectory, [1, 2]),
        (scale_trajectory, []),
        (scale_trajectory, [[1, float("inf")], [1, 2]]),
        (scale_bbox_xyxy, [[1, 2], [3, 4]]),
    ],
)
def test_what_is_not_of_the_shape_is_shown(scale, value):
    with pytest.raises(ValueError, match="got ") as caught:
        scale(value, (10, 10), (20, 20))
    assert repr(value) in str(caught.value)


def test_a_size_must_be_positive():
    for size in ((0, 10), (10, -1), (10,), None):
        with pytest.raises(ValueError, match="width, height"):
            scale_points([1, 2], size, (10, 10))
