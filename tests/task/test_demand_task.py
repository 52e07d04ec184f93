"""The demand task: places, points and choices."""

import math

import pytest
from task_cases import DEGENERATE, metrics, prediction, said, scored

from task.demand_prediction import accuracy_reward, process_answer

NAME = "demand-prediction"
# In the processed picture: [322, 238, 402.5, 297.5] and [0, 0, 64.4, 47.6].
CUP, JUG = [320, 240, 400, 300], [0, 0, 64, 48]
DIAGONAL = math.hypot(644, 476)
CHOICES = ["a garden phlox", "a lamp", "a cup of tea"]


@pytest.mark.parametrize(
    ("answer", "form", "score", "success"),
    [
        ([360, 270], 1.0, 1.0, 1),
        ([322, 238], 1.0, 1.0, 1),  # the edge is inside
        ([20, 20], 1.0, 1.0, 1),  # any object that meets the need
        ({"point_2d": [360, 270], "label": "cup"}, 1.0, 1.0, 1),
        ([362, 337.5], 1.0, math.exp(-40 / (0.1 * DIAGONAL)), 0),
        ([322, 238, 402.5, 297.5], 1.0, 1.0, 1),  # a box scores its overlap
        ([322, 238, 362.25, 297.5], 1.0, 0.5, 1),
        ([500, 400, 600, 450], 1.0, 0.0, 0),
        ([[360, 270], [20, 20]], 0.0, 0.0, 0),  # two guesses
        ([360], 0.0, 0.0, 0),
        ("B", 0.0, 0.0, 0),  # no choices were given
        ("", 0.0, 0.0, 0),
        ([], 0.0, 0.0, 0),
        ("[360, 270", 0.0, 0.0, 0),
    ],
)
def test_places(answer, form, score, success):
    got = scored(NAME, said(answer), [CUP, JUG])
    assert got[:2] == (form, pytest.approx(score)) and got[2]["success"] == success
    assert got[2]["parse_fail"] == 1 - form


def test_points():
    truth = {"point_2d": [320, 240]}  # processed: [322, 238]
    assert scored(NAME, said([322, 238]), truth)[1:] == (1.0, {"success": 1, "parse_fail": 0, "scale_suspect": 0})
    _, score, logged = scored(NAME, said([322, 238 + 0.1 * DIAGONAL]), [truth, {"point_2d": [600, 20]}])
    assert score == pytest.approx(math.exp(-1)) and logged["success"] == 0
    assert scored(NAME, said([322, 238 + 0.049 * DIAGONAL]), truth)[2]["success"] == 1
    assert scored(NAME, said([312, 228, 332, 248]), truth)[1] == 1.0  # a box stands for its centre
    assert scored(NAME, said([0.5, 0.5]), truth)[2]["scale_suspect"] == 1


@pytest.mark.parametrize(
    "answer",
    ["c", "(C)", "C.", "C:", "a cup of tea", "A cup of tea.", "C: a cup of tea", "**C**", "**C. a cup of tea**", "$C$"],
)
def test_the_right_choice(answer):
    for truth in ("C", "a cup of tea"):
        assert scored(NAME, said(answer), truth, (None, None), choices=CHOICES)[:2] == (1.0, 1.0)


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("A", 1.0),
        ("a lamp", 1.0),
        ("D", 0.0),
        ("", 0.0),
        ("A or C", 0.0),
        ("A, B, C", 0.0),
        ("A B C", 0.0),
        ("a garden phlox or a lamp or a cup of tea", 0.0),
        ("cup", 0.0),
        ("(C) a lamp", 0.0),  # letter and text disagree
        ("It is C", 0.0),
        ("[320, 240]", 0.0),
        ("\u00df", 0.0),
    ],
)
def test_wrong_choices_and_several_choices(answer, form):
    got = scored(NAME, said(answer), "C", (None, None), choices=CHOICES)
    assert got[:2] == (form, 0.0) and got[2]["parse_fail"] == 1 - form


def test_a_choice_about_a_picture_needs_no_frame():
    assert scored(NAME, said("B"), "B", choices=CHOICES)[1] == 1.0


@pytest.mark.parametrize("text", DEGENERATE)
def test_degenerate_completions_score_zero(text):
    assert scored(NAME, text, [CUP])[:2] == (0.0, 0.0)
    assert scored(NAME, text, "A", choices=CHOICES)[:2] == (0.0, 0.0)


def test_wrong_records_are_said():
    def score(sol, **extra):
        return accuracy_reward(said("A"), sol, id="r7", processed_size=(28, 28), record={"extra": extra})

    assert accuracy_reward(said("A"), None) is None
    for choices in (["one"], "AB", [1, 2], [" ", "b"], ["x"] * 27):
        with pytest.raises(ValueError, match=r"record r7: choices .* 2 to 10 texts"):
            score("A", choices=choices)
    for answer in ("D", "a cup", 2, ["A"]):
        with pytest.raises(ValueError, match=r"record r7: answer .* one choice"):
            score(answer, choices=CHOICES)
    with pytest.raises(ValueError, match="record r7: the answer holds no box or point"):
        score([])
    with pytest.raises(ValueError, match="give the record an image"):
        accuracy_reward(said("[1, 2]"), [CUP], id="r7")
    for answer in ([{"point_2d": [1, 2]}, 5], [{"point_2d": [1]}], [{"point_2d": [1, 2]}, CUP], 5, [5]):
        with pytest.raises(ValueError, match="got"):
            process_answer(answer, (10, 10), (20, 20))


def test_metrics():
    rows = [
        prediction(NAME, said([360, 270]), [CUP]),
        prediction(NAME, said([0.3, 0.3]), [CUP]),
        prediction(NAME, said("C"), "a cup of tea", (None, None), choices=CHOICES),
        prediction(NAME, said("A"), "C", choices=CHOICES),
        prediction(NAME, "no", [CUP]),
        prediction(NAME, None, [CUP]),
    ]
    found = metrics(NAME, *rows)
    assert found == {"success": 0.4, "parse_failure_rate": 0.2, "scale_suspect": 1.0}
    assert metrics(NAME) == metrics(NAME, rows[-1]) == {}


@pytest.mark.parametrize("truth", [[CUP], [{"point_2d": [360, 270]}]])
@pytest.mark.parametrize("box", [[402.5, 297.5, 322, 238], [402.5, 238, 322, 297.5], [362, 268, 362, 268]])
def test_a_box_without_area_is_no_place(box, truth):
    assert scored(NAME, said(box), truth)[1:] == (0.0, {"success": 0, "parse_fail": 0, "scale_suspect": 0})
