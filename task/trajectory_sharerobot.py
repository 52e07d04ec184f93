"""The trajectory of a robot's gripper: a path of way-points in the picture.

Data: ShareRobot's trajectory part (BAAI/ShareRobot, Apache-2.0), and any record whose answer is [[x, y], ...] in pixels
of the original picture. The model writes its own coordinates: pixels of the processed picture (Qwen2.5-VL), or 0 to
1000 (Qwen3-VL); "the picture" below is that plane.

Reward: exp(-DFD / (0.1 * diagonal)), where DFD is the discrete Frechet distance to the true path, both in the picture;
an unreadable path scores 0. Distances: discrete Frechet after Eiter and Mannila (1994, CDTR 94/64), Hausdorff between
the two point sets, RMSE of the two paths resampled to 50 points evenly by arc length, distance between the last points.
"""

import math

import numpy as np

from task.errors import UserError
from task.parsing.answers import answer_text, parse_points, split_completion
from task.processing_utils import scale_trajectory
from task.rewards.boxes import plane_size

MIN_POINTS, MAX_POINTS = 2, 256  # a longer prediction is not a path, and would make the distances slow
REWARD_SCALE = 0.1  # a DFD of a tenth of the diagonal scores exp(-1)
RESAMPLED_POINTS = 50
FARTHEST = 1e6  # a number beyond this is not a pixel, so the answer is not a path

TASK_CONFIG = {
    "task_type": "trajectory-sharerobot",
    "grpo_template": (
        "{Question} First think inside <think> </think>, then give the path inside <answer> </answer> "
        "as [[x, y], ...] {Coordinates}, from start to end."
    ),
    "description": "the path of a robot's gripper through the picture, scored by discrete Frechet distance",
    "input_format": "one picture and an instruction in words",
    "output_format": "[[x, y], ...], at least 2 way-points",
    "frame": "processed",
}

SELF_TEST = {
    "record": {
        "answer": [[0, 0], [320, 240], [640, 480]],
        "image_size": (640, 480),
        "processed_size": (644, 476),
    },
    "right": "<think>down the diagonal</think><answer>[[0, 0], [322, 238], [644, 476]]</answer>",
    "wrong": "<think>up the diagonal</think><answer>[[644, 476], [322, 238], [0, 0]]</answer>",
}

METRICS = {"*_px": "lower", "*_1000": "lower", "parse_failure_rate": "lower", "scale_suspect": "lower"}


def format_reward(completion, sol, **kw):
    """1.0 for exactly one thought and one answer block, the answer a path of 2 to 256 points; else 0.0."""
    parts = split_completion(completion, kw.get("thought_end", "</think>"))
    return float(parts is not None and _path_in(parts[1]) is not None)


def accuracy_reward(completion, sol, **kw):
    """(score in [0, 1], {"dfd": pixels, "parse_fail": 0 or 1, "scale_suspect": 0 or 1}); None without a true path."""
    if sol is None:
        return None
    truth, size = _truth(sol, kw), plane_size(TASK_CONFIG["frame"], kw)
    diagonal = math.hypot(*size)
    path = parse_answer(completion, **kw)
    if path is None:
        return 0.0, {"dfd": diagonal, "parse_fail": 1, "scale_suspect": 0}
    dfd = discrete_frechet(path, truth)
    logged = {"dfd": min(dfd, diagonal), "parse_fail": 0, "scale_suspect": int(scale_suspect(path, size))}
    return math.exp(-dfd / (REWARD_SCALE * diagonal)), logged


def process_answer(answer, size_from, size_to):
    """Rescales a true path from one picture size to another. UserError for a path of fewer than 2 points."""
    path = scale_trajectory(answer, size_from, size_to)
    if len(path) < MIN_POINTS:
        raise UserError(f"a path needs at least {MIN_POINTS} way-points, got {len(path)}: {answer!r}.")
    return path


def parse_answer(completion, **kw):
    """The predicted path [[x, y], ...] in the processed picture, or None."""
    return _path_in(answer_text(completion, kw.get("thought_end", "</think>")))


def compute_metrics(predictions, **kw):
    """Means over the predictions with a true path and a picture that loaded; scale_suspect is a count.

    dfd, hausdorff, rmse and endpoint have the suffixes _px (pixels of the original picture) and _1000 (0-1000 on both
    axes). A prediction without a path scores the diagonal, which also caps all distances.
    """
    rows = [row for row in predictions if row["status"] != "load_error" and row["answer"] is not None]
    if not rows:
        return {}
    measured = [_distances(row) for row in rows]
    metrics = {name: float(np.mean([one[name] for one in measured])) for name in measured[0]}
    suspects = [
        row
        for row in rows
        if row["prediction"] and scale_suspect(row["prediction"], plane_size(TASK_CONFIG["frame"], row))
    ]
    return {
        **metrics,
        "format": float(np.mean([row["format"] or 0.0 for row in rows])),
        "accuracy": float(np.mean([row["accuracy"] or 0.0 for row in rows])),
        "parse_failure_rate": float(np.mean([row["prediction"] is None for row in rows])),
        "scale_suspect": float(len(suspects)),
    }


def discrete_frechet(p, q):
    """The shortest leash for two walkers along the points of two paths, stepping forward one at a time or both at once.

    >>> round(discrete_frechet([(0, 0), (10, 0), (20, 0)], [(0, 3), (20, 3)]), 4)
    10.4403
    """
    gaps = _pairwise(p, q)
    # above[j + 1] is the leash needed to reach the pair (i - 1, j); the pair before the first needs none.
    above = [0.0] + [math.inf] * gaps.shape[1]
    for row in gaps.tolist():
        here = [math.inf]
        for j, gap in enumerate(row):
            here.append(max(gap, min(above[j], above[j + 1], here[j])))
        above = here
    return above[-1]


def hausdorff(p, q):
    """The largest distance from a point of either path to the nearest point of the other; order does not matter."""
    gaps = _pairwise(p, q)
    return float(max(gaps.min(axis=0).max(), gaps.min(axis=1).max()))


def rmse(p, q, points=RESAMPLED_POINTS):
    """Root mean square distance of the two paths, each resampled to `points` points evenly by arc length."""
    return float(np.sqrt(np.mean(np.sum((resample(p, points) - resample(q, points)) ** 2, axis=1))))


def endpoint_distance(p, q):
    """The distance between the last points."""
    return float(np.linalg.norm(_array(p)[-1] - _array(q)[-1]))


def resample(path, points):
    """(points, 2) way-points at even steps of arc length, ends kept; a path of no length repeats its point."""
    path = _array(path)
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
    wanted = np.linspace(0.0, along[-1], points)
    return np.stack([np.interp(wanted, along, path[:, axis]) for axis in (0, 1)], axis=1)


def scale_suspect(path, size):
    """True when all numbers lie in [0, 1] or some lie outside the picture: probably another scale than pixels."""
    array = _array(path)
    fractions = array.min() >= 0 and array.max() <= 1
    return bool(fractions or array.min() < 0 or (array > np.array(size)).any())


def _distances(row):
    """All distances of one prediction, in original pixels and on the 0-1000 scale, capped at the diagonal."""
    found = {}
    for unit, size in (("px", row["image_size"]), ("1000", (1000, 1000))):
        worst = math.hypot(*size)
        truth = scale_trajectory(row["answer"], row["image_size"], size)
        path = row["prediction"] and scale_trajectory(row["prediction"], plane_size(TASK_CONFIG["frame"], row), size)
        for name, measure in DISTANCES.items():
            found[f"{name}_{unit}"] = min(measure(path, truth), worst) if path else worst
    return found


DISTANCES = {"dfd": discrete_frechet, "hausdorff": hausdorff, "rmse": rmse, "endpoint": endpoint_distance}


def _path_in(answer):
    points = parse_points(answer)
    if points is None or not MIN_POINTS <= len(points) <= MAX_POINTS:
        return None
    return points if all(abs(number) <= FARTHEST for point in points for number in point) else None


def _truth(sol, kw):
    if not isinstance(sol, list) or len(sol) < MIN_POINTS:
        raise UserError(f"record {kw.get('id')}: the answer must be a path of at least 2 points, got {sol!r}.")
    return sol


def _array(path):
    return np.asarray(path, dtype=float)


def _pairwise(p, q):
    """(len(p), len(q)) distances."""
    return np.linalg.norm(_array(p)[:, None] - _array(q)[None], axis=2)
