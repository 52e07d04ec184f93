"""COCO's average precision, independent of the order of boxes with equal confidence.

pycocotools breaks ties in confidence by input order, both in the matching and in the precision-recall curve. Here all
detections with the same confidence form one step: as many of them as possible are matched at once (among such
matchings, the one with the largest summed overlap), and the curve has one point per confidence. If all confidences
differ, the algorithm and the value are COCO's (Lin et al., 2014; COCOeval of pycocotools).
"""

from collections import defaultdict

import numpy as np

from task.rewards.boxes import iou

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)


def average_precision(pictures) -> np.ndarray:
    """(10,) average precision at IoU 0.5, 0.55, ..., 0.95, averaged over the classes that have a true box.

    Args:
        pictures: a pair (found, true) per picture; `found` holds (class, box, confidence), `true` holds (class, box),
            boxes are [x1, y1, x2, y2]. At least one picture must have a true box.
    """
    true_boxes, found_boxes = defaultdict(list), defaultdict(list)  # class -> one entry per picture
    for found, true in pictures:
        names = {name for name, *_ in [*found, *true]}
        for name in names:
            true_boxes[name].append(sorted(box for other, box in true if other == name))
            found_boxes[name].append(sorted((-score, box) for other, box, score in found if other == name))
    classes = [name for name in true_boxes if any(true_boxes[name])]
    return np.mean([_of_class(found_boxes[name], true_boxes[name]) for name in classes], axis=0)


def matched_pairs(overlaps, threshold: float) -> list[tuple[int, int]]:
    """(row, column) of each pair in a one-to-one matching with as many pairs of at least `threshold` as possible.

    Among such matchings, the one with the largest summed overlap. `overlaps` is a table of numbers in [0, 1].

    >>> matched_pairs([[0.8, 0.0], [0.9, 0.6]], 0.5)
    [(0, 0), (1, 1)]
    """
    from scipy.optimize import linear_sum_assignment

    table = np.asarray(overlaps, dtype=float)
    if table.size == 0:
        return []
    good = table >= threshold
    # One more pair outweighs any sum of overlaps.
    rows, columns = linear_sum_assignment(np.where(good, table + min(table.shape) + 1, 0.0), maximize=True)
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if good[i, j]]


def _of_class(found: list, true: list) -> np.ndarray:
    """(10,) average precision of one class; `found` and `true` hold the boxes of each picture."""
    total = sum(map(len, true))
    scores = sorted({score for boxes in found for score, _ in boxes})  # negated confidences: the highest first
    counts = np.array([sum(score == one for boxes in found for one, _ in boxes) for score in scores])
    values = []
    for threshold in THRESHOLDS:
        hits = np.zeros(len(scores))
        for boxes, truth in zip(found, true, strict=True):
            for score, number in _hits(boxes, truth, threshold).items():
                hits[scores.index(score)] += number
        values.append(_area(np.cumsum(hits), np.cumsum(counts), total))
    return np.array(values)


def _hits(boxes: list, truth: list, threshold: float) -> dict[float, int]:
    """The number of matched boxes of each (negated) confidence in one picture; higher confidences choose first."""
    free, hits = list(truth), {}
    for score in sorted({score for score, _ in boxes}):
        same = [box for other, box in boxes if other == score]
        pairs = matched_pairs([[iou(box, one) for one in free] for box in same], threshold)
        hits[score] = len(pairs)
        taken = {column for _, column in pairs}
        free = [one for place, one in enumerate(free) if place not in taken]
    return hits


def _area(hits: np.ndarray, found: np.ndarray, total: int) -> float:
    """The mean over 101 recalls of the best precision that any confidence reaches at that recall or above."""
    precision = np.maximum.accumulate((hits / np.maximum(found, 1))[::-1])[::-1]
    places = np.searchsorted(hits / total, RECALLS, side="left")
    return float(np.mean(np.append(precision, 0.0)[places]))
