"""The detection task: one-to-one matching, labels, empty pictures, COCO's average precision."""

import itertools
import random

import pytest
from task_cases import DEGENERATE, metrics, prediction, said, scored

from task.object_detection import MAX_OBJECTS, accuracy_reward, match_score
from task.rewards.boxes import iou

NAME = "object-detection"
SAME = ((1000, 1000), (1000, 1000))  # one frame, so that boxes can be written once
A, B = [100, 100, 200, 200], [600, 600, 700, 700]


def thing(box, label=None):
    return {"bbox_2d": box, "label": label}


def score(answer, truth):
    return scored(NAME, said(answer), truth, SAME)[1]


def test_many_objects_and_none():
    assert score([A, B], [A, B]) == score([B, A], [A, B]) == 1.0
    assert score([A, A], [A, B]) == 0.5  # A is matched once
    assert score([A], [A, B]) == 0.5 and score([A, B], [A]) == 0.5
    assert score([], []) == 1.0
    assert score([A], []) == 0.0 and score([], [A]) == 0.0
    assert score([A] * 10, [A]) == pytest.approx(0.1)  # guessing often costs


def test_the_matching_is_the_best_one():
    draw = random.Random(3)
    for _ in range(60):
        found, true = ([thing(box(draw)) for _ in range(draw.randint(1, 4))] for _ in range(2))
        few, many = sorted((found, true), key=len)
        best = max(
            sum(iou(a["bbox_2d"], b["bbox_2d"]) for a, b in zip(few, chosen, strict=True))
            for chosen in itertools.permutations(many, len(few))
        )
        assert match_score(found, true) == pytest.approx(best / len(many))
        assert match_score(draw.sample(found, len(found)), true) == pytest.approx(best / len(many))


def box(draw):
    x, y = draw.randint(0, 60), draw.randint(0, 60)
    return [x, y, x + draw.randint(1, 40), y + draw.randint(1, 40)]


def test_labels_count_where_the_record_has_them():
    truth = [thing(A, "cup"), thing(B, "lamp")]
    assert score([thing(A, "CUP "), thing(B, "lamp")], truth) == 1.0
    assert score([thing(A, "lamp"), thing(B, "cup")], truth) == 0.0
    assert score([thing(A, "cup"), B], truth) == 0.5
    assert score([A, B], truth) == 0.0  # labels were asked for
    assert score([thing(A, "cup"), thing(B, "lamp")], [A, B]) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        '{"bbox_2d": [334, 557, 468, 614], "label": "cup"}',
        '{\n "bbox_2d": [334,\n 557, 468,\n 614],\n "label": "cup"\n}',
        '[{"bbox_2d": [334, 557, 468, 614], "label": "cup"}]',
        '```\n[{"bbox_2d": [334, 557, 468, 614], "label": "cup"}]\n```',
        '```JSON\n[{"bbox_2d": [334, 557, 468, 614], "label": "cup"}]\n```',
        "[{'bbox_2d': [334, 557, 468, 614], 'label': 'cup'}]",
    ],
)
def test_one_object_in_many_spellings(text):
    truth = [thing([334, 557, 468, 614], "cup")]
    assert scored(NAME, said(text), truth, SAME)[:2] == (1.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        '[{"bbox_2d": [334, 557',
        '[{"bbox_2d": [1, 2, 3]}]',
        '[{"box": [334, 557, 468, 614]}]',
        "```json\n[]\n```\n```json\n[]\n```",
        "none",
        "",
        str([A] * (MAX_OBJECTS + 1)),
        "[[1, 2, 3, 1e300]]",
        "null",
    ],
)
def test_what_is_no_answer(text):
    for truth in ([A], []):  # also where there is nothing to find
        form, value, logged = scored(NAME, said(text), truth, SAME)
        assert (form, value, logged["parse_fail"]) == (0.0, 0.0, 1)


@pytest.mark.parametrize("text", DEGENERATE)
def test_degenerate_completions_score_zero(text):
    assert scored(NAME, text, [A])[:2] == scored(NAME, text, [])[:2] == (0.0, 0.0)


def test_odd_labels_are_none():
    assert score('[{"bbox_2d": [100, 100, 200, 200], "label": 7}]', [thing(A, "7")]) == 0.0
    assert score('[{"bbox_2d": [100, 100, 200, 200], "label": ["cup"]}]', [A]) == 1.0


def test_records_without_answer_or_picture():
    assert accuracy_reward(said([A]), None) is None
    with pytest.raises(ValueError, match=r"record r7: object-detection .* image"):
        accuracy_reward(said([A]), [A], id="r7", question_type=NAME, processed_size=None)


def test_metrics_of_single_objects_and_empty_pictures():
    rows = [
        prediction(NAME, said([A]), A, SAME),
        prediction(NAME, said([[100, 100, 200, 150]]), A, SAME),  # IoU 0.5 counts
        prediction(NAME, said([[100, 100, 200, 149]]), A, SAME),
        prediction(NAME, said([]), [], SAME),
        prediction(NAME, said([B]), [], SAME),
        prediction(NAME, "no", [], SAME),  # no answer is not the answer "none"
        prediction(NAME, None, A, SAME),
    ]
    found = metrics(NAME, *rows)
    assert found["accuracy_50"] == pytest.approx(2 / 3) and found["empty_accuracy"] == pytest.approx(1 / 3)
    assert found["match_score"] == pytest.approx((1 + 0.5 + 0.49 + 1) / 6)
    assert (found["precision_50"], found["recall_50"]) == (0.5, pytest.approx(2 / 3))
    assert found["f1_50"] == pytest.approx(4 / 7)
    assert found["parse_failure_rate"] == pytest.approx(1 / 6) and found["scale_suspect"] == 0.0
    assert metrics(NAME) == metrics(NAME, rows[-1]) == {}
    nothing = metrics(NAME, rows[3])
    assert nothing["f1_50"] == nothing["empty_accuracy"] == 1.0 and "ap" not in nothing and "accuracy_50" not in nothing


def test_average_precision_is_cocos():
    a, b = thing(A, "a"), thing(B, "b")
    rows = [
        prediction(NAME, said([a, b]), [a, b], SAME),
        prediction(NAME, "no", [a], SAME),
        prediction(NAME, said([thing(A, "kind that is nowhere")]), [], SAME),
    ]
    found = metrics(NAME, *rows)
    # a: precision 1 up to recall 1/2, which is 51 of the 101 recalls COCO averages over; b: 1.
    assert found["ap"] == found["ap_50"] == pytest.approx((51 / 101 + 1) / 2)
    assert metrics(NAME, rows[1])["ap"] == 0.0
    shifted = prediction(NAME, said([thing([100, 100, 200, 172], "a")]), [a], SAME)  # IoU 0.72: 5 of 10 thresholds
    assert metrics(NAME, shifted)["ap"] == pytest.approx(0.5)
    assert metrics(NAME, shifted)["ap_50"] == pytest.approx(1.0)
    named = prediction(NAME, said([thing(A, "any")]), [A], SAME)
    assert metrics(NAME, named)["ap"] == pytest.approx(1.0)  # labels do not count where the record has none


def test_precision_and_recall_are_one_value_for_any_order():
    """Two matchings of one summed overlap, with 1 and 2 pairs above 0.5."""
    truth = [thing([4, 0, 16, 8]), thing([4, 0, 20, 8]), thing([8, 0, 16, 8])]
    for found in itertools.permutations([[0, 0, 16, 8], [0, 0, 12, 8], [0, 0, 12, 8]]):
        assert metrics(NAME, prediction(NAME, said(list(found)), truth, SAME))["f1_50"] == pytest.approx(2 / 3)


def test_average_precision_is_one_value_for_any_order_of_boxes_and_records():
    right = [thing([x, 0, x + 50, 50]) for x in (0, 100, 200)]
    wrong = [thing([x, 500, x + 50, 550]) for x in (0, 100, 200)]
    for found in ([*right, *wrong], [*wrong, *right], [one for pair in zip(right, wrong, strict=True) for one in pair]):
        measured = metrics(NAME, prediction(NAME, said(found), right, SAME))
        assert measured["ap"] == measured["ap_50"] == pytest.approx(0.5)
    rows = [
        prediction(NAME, said([found]), [true], SAME) for found, true in zip([*right, *wrong], right * 2, strict=True)
    ]
    # Half of six boxes, half of six objects: precision 1/2 up to recall 1/2.
    assert metrics(NAME, *rows)["ap"] == metrics(NAME, *rows[::-1])["ap"] == pytest.approx(0.5 * 51 / 101)
