"""The affordance task: ShareRobot's boxes, overlap, and what is no box."""

import pytest
from task_cases import DEGENERATE, metrics, prediction, said, scored

from task.affordance_sharerobot import accuracy_reward, process_answer
from task.rewards.boxes import distance, iou, scale_suspect, true_objects

NAME = "affordance-sharerobot"
SHAREROBOT = {"x": 352.874, "y": 186.479, "width": 19.296, "height": 14.472}
CORNERS = [352.874, 186.479, 372.170, 200.951]
BOX = [160, 120, 480, 360]  # in the processed picture: [161, 119, 483, 357]


def test_sharerobots_form_is_corner_and_size():
    (one,) = true_objects(SHAREROBOT)
    assert one["bbox_2d"] == pytest.approx(CORNERS)
    assert iou([352.874, 186.479, 19.296, 14.472], CORNERS) == 0.0  # read as two corners it meets nothing
    assert scored(NAME, said([355.08, 184.925, 374.496, 199.276]), SHAREROBOT)[1] == pytest.approx(1.0, abs=1e-3)


def test_frames_of_a_large_picture():
    truth, sizes = [1000, 600, 2000, 1800], ((4000, 3000), (728, 532))
    assert process_answer(truth, *sizes)[0]["bbox_2d"] == pytest.approx([182.0, 106.4, 364.0, 319.2])
    assert scored(NAME, said([182.0, 106.4, 364.0, 319.2]), truth, sizes)[1] == pytest.approx(1.0)
    assert scored(NAME, said([182, 106, 364, 319]), truth, sizes)[1] == pytest.approx(0.997, abs=5e-4)
    assert scored(NAME, said(truth), truth, sizes)[1] == 0.0  # original pixels: no rescue
    half = ((4000, 3000), (364, 266))  # another max_pixels, the equivalent answer
    assert scored(NAME, said([91.0, 53.2, 182.0, 159.6]), truth, half)[1] == pytest.approx(1.0)


def test_another_scale_is_counted_and_never_repaired():
    form, score, logged = scored(NAME, said([0.5, 0.5, 0.75, 0.75]), [320, 240, 480, 360])
    assert (form, score, logged["scale_suspect"]) == (1.0, 0.0, 1)
    assert scale_suspect([[0, 0, 700, 10]], (644, 476)) and not scale_suspect([[0, 0, 644, 476]], (644, 476))
    assert not scale_suspect([], (644, 476))


@pytest.mark.parametrize(
    ("answer", "form", "score", "fails"),
    [
        ([161, 119, 483, 357], 1.0, 1.0, 0),
        ('{"bbox_2d": [161, 119, 483, 357]}', 1.0, 1.0, 0),
        ("```json\n[161, 119,\n 483, 357]\n```", 1.0, 1.0, 0),
        ([161, 119, 322, 357], 1.0, 0.5, 0),
        ([483, 357, 161, 119], 1.0, 0.0, 0),  # swapped corners are read as they stand
        ([-5, 10.5, 30, 40], 1.0, 0.0, 0),
        ([[161, 119, 483, 357], [0, 0, 9, 9]], 0.0, 0.0, 1),  # two guesses
        ([161, 119], 0.0, 0.0, 1),
        ([], 0.0, 0.0, 1),
        ('[{"bbox_2d": [161, 119', 0.0, 0.0, 1),
        ([161, 119, 483, 1e9], 0.0, 0.0, 1),
        ("", 0.0, 0.0, 1),
        ("the handle", 0.0, 0.0, 1),
    ],
)
def test_answers(answer, form, score, fails):
    got = scored(NAME, said(answer), BOX)
    assert got[:2] == (form, pytest.approx(score)) and got[2]["parse_fail"] == fails


@pytest.mark.parametrize("text", DEGENERATE)
def test_degenerate_completions_score_zero(text):
    assert scored(NAME, text, BOX)[:2] == (0.0, 0.0)


def test_no_box_is_not_a_box_of_zeros():
    tiny = [0, 0, 1, 1]
    assert scored(NAME, said("no box"), tiny)[1:] == (0.0, {"centre_hit": 0, "parse_fail": 1, "scale_suspect": 0})


def test_any_true_box_will_do():
    both = [BOX, {"bbox_2d": [0, 0, 40, 40], "label": "handle"}]
    assert scored(NAME, said([161, 119, 483, 357]), both)[1] == pytest.approx(1.0)
    _, score, logged = scored(NAME, said([0, 0, 20.125, 39.6667]), both)
    assert score == pytest.approx(0.5, abs=1e-3) and logged["centre_hit"] == 1


def test_distance_to_a_box():
    assert distance([5, 5], [0, 0, 10, 10]) == distance([10, 10], [0, 0, 10, 10]) == 0.0
    assert distance([13, 14], [0, 0, 10, 10]) == 5.0


@pytest.mark.parametrize(
    "answer",
    [
        "[1, 2, 3, 4]",
        [1, 2, 3],
        [5, 5, 5, 9],
        [9, 9, 1, 1],
        {"x": 1, "y": 2, "width": 0, "height": 4},
        {"x": 1, "y": 2, "width": 3},
        {"bbox_2d": [1, 2, 3, float("nan")]},
        {"bbox_2d": [1, 2, 3, 4], "label": 7},
        [[1, 2, 3, 4], None],
        [True, 2, 3, 4],
        7,
    ],
)
def test_a_wrong_record_is_said(answer):
    with pytest.raises(ValueError, match="box"):
        process_answer(answer, (10, 10), (20, 20))


def test_records_without_answer_or_picture():
    assert accuracy_reward(said(BOX), None) is None
    with pytest.raises(ValueError, match=r"record r7: affordance-sharerobot .* give the record an image"):
        accuracy_reward(said(BOX), BOX, id="r7", question_type=NAME, processed_size=None)
    with pytest.raises(ValueError, match="record r7: the answer holds no box"):
        accuracy_reward(said(BOX), [], id="r7", processed_size=(28, 28))


def test_metrics():
    rows = [
        prediction(NAME, said([161, 119, 483, 357]), BOX),
        prediction(NAME, said([161, 119, 274, 357]), BOX),  # overlap about 0.35
        prediction(NAME, said([0.1, 0.1, 0.2, 0.2]), BOX),
        prediction(NAME, "no", BOX),
        prediction(NAME, None, BOX),
    ]
    found = metrics(NAME, *rows)
    assert found["iou"] == pytest.approx((1 + 113 / 322) / 4)
    assert (found["iou_50"], found["centre_hit"]) == (0.25, 0.5)
    assert (found["parse_failure_rate"], found["scale_suspect"]) == (0.25, 1.0)
    assert metrics(NAME) == metrics(NAME, rows[-1]) == {}


@pytest.mark.parametrize(
    "box", [[483, 357, 161, 119], [483, 119, 161, 357], [322, 238, 322, 238], [200, 238, 400, 238]]
)
def test_a_box_without_area_has_no_centre(box):
    assert scored(NAME, said(box), BOX)[2]["centre_hit"] == 0
    assert metrics(NAME, prediction(NAME, said(box), BOX))["centre_hit"] == 0.0
    assert scored(NAME, said([300, 200, 340, 240]), BOX)[2]["centre_hit"] == 1
