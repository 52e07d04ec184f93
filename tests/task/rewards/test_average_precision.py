"""Average precision: pycocotools' value where confidences differ, one value for any order where they tie."""

import contextlib
import io
import random

import numpy as np
import pytest

from task.rewards.average_precision import average_precision, matched_pairs


def pictures(draw, tied: bool) -> list:
    """Boxes near true ones and elsewhere, of three classes; without ties no two confidences are equal."""
    scores = iter(draw.sample(range(1000), 200))

    def box():
        x, y = draw.randint(0, 40), draw.randint(0, 40)
        return [x, y, x + draw.randint(5, 40), y + draw.randint(5, 40)]

    made = []
    for _ in range(draw.randint(1, 6)):
        true = [(draw.choice("ab"), box()) for _ in range(draw.randint(0, 4))]
        near = [(name, [n + draw.randint(-3, 3) for n in one]) for name, one in true if draw.random() < 0.8]
        found = [*near, *((draw.choice("abc"), box()) for _ in range(draw.randint(0, 4)))]
        confidences = [draw.choice((0.5, 1.0)) if tied else next(scores) / 1000 for _ in found]
        made.append(([(*one, score) for one, score in zip(found, confidences, strict=True)], true))
    return made if any(true for _, true in made) else pictures(draw, tied)


def test_where_confidences_differ_it_is_pycocotools_value():
    pytest.importorskip("pycocotools")
    draw = random.Random(1)
    for _ in range(100):
        made = pictures(draw, tied=False)
        assert average_precision(made) == pytest.approx(of_pycocotools(made), abs=1e-9)


def test_where_confidences_tie_any_order_has_one_value():
    draw, moved = random.Random(2), 0
    for _ in range(100):
        made = pictures(draw, tied=True)
        value = average_precision(made)
        orders = [
            [(draw.sample(found, len(found)), draw.sample(true, len(true))) for found, true in made] for _ in range(4)
        ]
        for other in orders:
            draw.shuffle(other)
            assert average_precision(other) == pytest.approx(value, abs=1e-12)
        moved += value.mean() not in (0.0, 1.0)
    assert moved > 50


def test_three_right_and_three_wrong_boxes_of_one_confidence():
    boxes = [[x, 0, x + 50, 50] for x in (0, 100, 200, 300, 400, 500)]
    found = [("cup", box, 1.0) for box in boxes]
    assert average_precision([(found, [("cup", box) for box in boxes[:3]])]) == pytest.approx([0.5] * 10)
    first = [(*one[:2], 1.0 - number / 10) for number, one in enumerate(found)]  # the right ones first
    assert average_precision([(first, [("cup", box) for box in boxes[:3]])]) == pytest.approx([1.0] * 10)


def test_as_many_pairs_as_possible():
    assert matched_pairs([[0.8, 0.0], [0.9, 0.6]], 0.5) == [(0, 0), (1, 1)]
    assert matched_pairs([[0.9, 0.6], [0.8, 0.0]], 0.5) == [(0, 1), (1, 0)]
    assert matched_pairs([[0.4, 0.3]], 0.5) == matched_pairs([], 0.5) == matched_pairs([[]], 0.5) == []


def test_no_box_at_all():
    assert average_precision([([], [("cup", [0, 0, 9, 9])])]) == pytest.approx([0.0] * 10)
    assert average_precision([([("lamp", [0, 0, 9, 9], 1.0)], [("cup", [0, 0, 9, 9])])]) == pytest.approx([0.0] * 10)


def of_pycocotools(made) -> np.ndarray:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    names = sorted({name for _, true in made for name, _ in true})

    def annotations(side):
        rows = []
        for number, picture in enumerate(made):
            for name, (x1, y1, x2, y2), *score in picture[side]:
                if name in names:
                    kind = {"image_id": number, "category_id": names.index(name), "id": len(rows) + 1, "iscrowd": 0}
                    kind |= {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
                    rows.append(kind | {"score": score[0]} if score else kind)
        return rows

    if not annotations(0):
        return np.zeros(10)  # pycocotools fails without a detection
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "info": {},
            "images": [{"id": number} for number in range(len(made))],
            "categories": [{"id": number, "name": name} for number, name in enumerate(names)],
            "annotations": annotations(1),
        }
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(annotations(0)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, 2]  # thresholds, recalls, classes; all areas, 100 boxes
    return precision.mean(axis=(1, 2))
