"""The trajectory task: distances with known values, rewards on good and bad answers, metrics that stay finite."""

import json
import math
import random
import time

import pytest

from dataset.prompts import render_question
from task.task_loader import get_task
from task.trajectory_sharerobot import (
    accuracy_reward,
    compute_metrics,
    discrete_frechet,
    endpoint_distance,
    format_reward,
    hausdorff,
    parse_answer,
    process_answer,
    resample,
    rmse,
)

P, Q = [(0, 0), (10, 0), (20, 0)], [(0, 3), (20, 3)]
SIZES = {"image_size": (640, 480), "processed_size": (644, 476)}
TRUTH = [[265.45, 120.0], [275.15, 162.42], [280.0, 213.33], [280.0, 259.39]]
SOL = process_answer(TRUTH, SIZES["image_size"], SIZES["processed_size"])


def said(path, thought="t"):
    return f"<think>{thought}</think><answer>{path if isinstance(path, str) else json.dumps(path)}</answer>"


def row(completion, status="ok", **changes):
    """A prediction as the evaluation makes it."""
    scored = accuracy_reward(completion, SOL, **SIZES)[0] if completion is not None else None
    return {
        "id": "1",
        "prediction": parse_answer(completion) if completion is not None else None,
        "format": format_reward(completion, SOL) if completion is not None else None,
        "accuracy": scored,
        "answer": TRUTH,
        "sol": SOL,
        "status": status,
        **SIZES,
        **changes,
    }


def test_known_distances():
    assert discrete_frechet(P, Q) == pytest.approx(10.4403, abs=1e-4)
    assert hausdorff(P, Q) == pytest.approx(10.4403, abs=1e-4)
    assert discrete_frechet(P, P[::-1]) == 20.0
    assert hausdorff(P, P[::-1]) == 0.0
    assert rmse(P, Q) == pytest.approx(3.0)
    assert endpoint_distance(P, Q) == 3.0
    assert endpoint_distance(P, P[::-1]) == 20.0
    assert discrete_frechet(P, P) == hausdorff(P, P) == rmse(P, P) == 0.0


def test_distances_are_symmetric_and_frechet_is_the_definition():
    draw = random.Random(1)
    for _ in range(50):
        p, q = ([[draw.random(), draw.random()] for _ in range(draw.randint(1, 5))] for _ in range(2))
        assert discrete_frechet(p, q) == pytest.approx(discrete_frechet(q, p)) == pytest.approx(shortest_leash(p, q))
        assert hausdorff(p, q) == hausdorff(q, p) <= discrete_frechet(p, q) + 1e-12


def shortest_leash(p, q, i=0, j=0):
    """Every way of walking, tried."""
    steps = [(i + 1, j), (i, j + 1), (i + 1, j + 1)]
    ahead = [shortest_leash(p, q, a, b) for a, b in steps if a < len(p) and b < len(q)]
    return max(math.dist(p[i], q[j]), min(ahead)) if ahead else math.dist(p[i], q[j])


def test_resampling_is_even_in_arc_length():
    corner = resample([[0, 0], [0, 0], [30, 0], [30, 10]], 5)
    assert corner.tolist() == [[0, 0], [10, 0], [20, 0], [30, 0], [30, 10]]
    assert resample([[4, 5], [4, 5]], 3).tolist() == [[4, 5]] * 3
    assert rmse([[0, 0], [10, 0]], [[0, 0], [1, 0], [10, 0]]) == pytest.approx(
        0.0
    )  # way-points on the line cost nothing


def test_the_prompt_is_what_the_demo_model_was_taught():
    assert render_question(get_task("trajectory-sharerobot"), "Q?") == (
        "Q? First think inside <think> </think>, then give the path inside <answer> </answer> as [[x, y], ...] "
        "in pixels of the picture, from start to end."
    )


def test_reward_of_the_right_path_is_one_in_the_processed_frame():
    score, logged = accuracy_reward(said(SOL), SOL, **SIZES)
    assert score == 1.0 and logged == {"dfd": 0.0, "parse_fail": 0, "scale_suspect": 0}
    off = [[x + 30.0, y] for x, y in SOL]
    score, logged = accuracy_reward(said(off), SOL, **SIZES)
    assert score == pytest.approx(math.exp(-30 / (0.1 * math.hypot(644, 476))))
    assert logged["dfd"] == pytest.approx(30.0)
    assert accuracy_reward(said(SOL[::-1]), SOL, **SIZES)[0] < 0.2  # the way back is another path


@pytest.mark.parametrize(
    ("completion", "form", "fails"),
    [
        (said("[[1, 2], [3, 4]]"), 1.0, 0),
        (said("[[1, 2],\n [3, 4]]\n", "two\nlines"), 1.0, 0),
        (said("```json\n[[1, 2], [3, 4]]\n```"), 1.0, 0),
        (said("[[-5, 10.5], [30, 40]]"), 1.0, 0),
        (said("[[1, 2], [3, 4]]") + "done", 0.0, 0),
        ("<answer>[[1, 2], [3, 4]]</answer>", 0.0, 0),
        (said("[[1, 2], [3, 4]]") * 2, 0.0, 0),  # only what follows the last thought is scored
        (said("[[1, 2]]"), 0.0, 1),
        (said("[1, 2, 3, 4]"), 0.0, 1),
        (said("[]"), 0.0, 1),
        (said(""), 0.0, 1),
        (said("[[1, 2], [3, 4"), 0.0, 1),
        (said("[[1, 2], [3, NaN]]"), 0.0, 1),
        (said("[[1, 2], [3, 1e300]]"), 0.0, 1),
        (said([[1, 2]] * 257), 0.0, 1),
        ("<think>t<answer>[[1, 2], [3, 4]]</answer>", 0.0, 1),
        ("I do not know", 0.0, 1),
        ("", 0.0, 1),
    ],
)
def test_format_and_parse_failures(completion, form, fails):
    assert format_reward(completion, SOL, **SIZES) == form
    score, logged = accuracy_reward(completion, SOL, **SIZES)
    assert logged["parse_fail"] == fails
    assert math.isfinite(logged["dfd"]) and (score == 0.0) == bool(fails)


def test_thought_end_of_the_run_is_used():
    completion = "<analysis>t</analysis><answer>[[1, 2], [3, 4]]</answer>"
    assert format_reward(completion, SOL, thought_end="</analysis>") == 1.0
    assert format_reward(completion, SOL) == 0.0
    assert parse_answer("<analysis>t<answer>[[1, 2], [3, 4]]</answer>", thought_end="</analysis>") is None


def test_reward_stays_between_0_and_1_on_mutated_answers():
    draw, good = random.Random(2), said([[267, 119], [276, 161], [281, 211], [281, 257]])
    seen = set()
    for _ in range(2_000):
        text = list(good)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(text))
            text[at] = draw.choice("0123456789.-e[]<>/, \n'\"(") + draw.choice(["", text[at]])
        form, (score, logged) = format_reward("".join(text), SOL), accuracy_reward("".join(text), SOL, **SIZES)
        assert form in (0.0, 1.0) and 0.0 <= score <= 1.0 and math.isfinite(logged["dfd"])
        seen.add((form, score > 0))
    assert {(0.0, False), (0.0, True), (1.0, True)} <= seen


@pytest.mark.parametrize("text", ["<answer>" * 16_000, "<think>" * 16_000, "[1,2,3," * 20_000, " " * 100_000])
def test_degenerate_completions_score_zero_at_once(text):
    started = time.process_time()
    assert format_reward(text, SOL, **SIZES) == 0.0
    assert accuracy_reward(text, SOL, **SIZES)[0] == 0.0
    assert time.process_time() - started < 0.1


def test_the_longest_allowed_path_is_scored_quickly():
    longest = [[i % 640, i % 470] for i in range(256)]
    started = time.process_time()
    assert accuracy_reward(said(longest), longest, **SIZES)[0] == 1.0
    assert time.process_time() - started < 0.5


def test_another_scale_is_counted_and_never_repaired():
    fractions = [[x / 644, y / 476] for x, y in SOL]
    score, logged = accuracy_reward(said(fractions), SOL, **SIZES)
    assert score < 0.05 and logged["scale_suspect"] == 1
    beyond = [[x * 3, y * 3] for x, y in SOL]
    assert accuracy_reward(said(beyond), SOL, **SIZES)[1]["scale_suspect"] == 1
    found = compute_metrics([row(said(fractions)), row(said(beyond)), row(said(SOL)), row("")])
    assert found["scale_suspect"] == 2.0


def test_faults_of_the_record_are_said_and_no_answer_abstains():
    assert accuracy_reward(said(SOL), None, **SIZES) is None
    with pytest.raises(ValueError, match=r"record r7.*at least 2"):
        accuracy_reward(said(SOL), [[1, 2]], id="r7", **SIZES)
    with pytest.raises(ValueError, match=r"record r7.*give the record an image"):
        accuracy_reward(said(SOL), SOL, id="r7", image_size=None, processed_size=None)
    with pytest.raises(ValueError, match="at least 2 way-points, got 1"):
        process_answer([[1, 2]], (10, 10), (20, 20))
    for answer in ([], "[[1, 2], [3, 4]]", [[1, 2, 3], [4, 5, 6]], [[352.9, 186.5], [None, 1]]):
        with pytest.raises(ValueError, match="got "):
            process_answer(answer, (10, 10), (20, 20))


def test_metrics_are_in_original_pixels_and_on_the_0_1000_scale():
    shifted = [[x + 16.1, y] for x, y in SOL]  # 16.1 of 644 is 16 of 640 and 25 of 1000
    found = compute_metrics([row(said(shifted))])
    for name in ("dfd", "hausdorff", "rmse", "endpoint"):
        assert found[f"{name}_px"] == pytest.approx(16.0)
        assert found[f"{name}_1000"] == pytest.approx(25.0)
    assert found["format"] == 1.0 and found["parse_failure_rate"] == 0.0 and found["scale_suspect"] == 0.0
    assert found["accuracy"] == pytest.approx(math.exp(-16.1 / (0.1 * math.hypot(644, 476))))


def test_no_answer_is_the_worst_score_and_finite():
    diagonal = math.hypot(640, 480)
    for completion in ("", said("[]"), said("[[1, 2]]"), "nonsense"):
        found = compute_metrics([row(completion, "parse_fail")])
        for name in ("dfd", "hausdorff", "rmse", "endpoint"):
            assert found[f"{name}_px"] == pytest.approx(diagonal)
            assert found[f"{name}_1000"] == pytest.approx(1000 * math.sqrt(2))
        assert found["parse_failure_rate"] == 1.0 and found["accuracy"] == 0.0 and found["format"] == 0.0
    far = compute_metrics([row(said("[[-900000, 0], [1e6, 1e6]]"))])
    assert far["dfd_px"] == pytest.approx(diagonal)  # no answer is never better than a bad one


def test_metrics_leave_out_pictures_that_did_not_load():
    lost = row(None, "load_error", image_size=None, processed_size=None)
    assert compute_metrics([lost]) == {} and compute_metrics([]) == {}
    assert compute_metrics([row(said(SOL), answer=None)]) == {}
    assert compute_metrics([row(said(SOL)), lost]) == compute_metrics([row(said(SOL))])
    assert compute_metrics([row(said(SOL)), lost])["accuracy"] == 1.0
