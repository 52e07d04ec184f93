"""A task file that declares another frame, for a model that speaks another scale, scores equal answers equally."""

import importlib
import json

import pytest

from task.rewards.frames import to_frame
from task.rewards.router import reward_arguments
from task.task_loader import load_tasks

SIZE, PROCESSED = (640, 480), (336, 252)
CASES = {  # question_type -> (file, answer, an answer near it in original pixels)
    "object-detection": ("object_detection", [[500, 400, 640, 480]], [[500, 400, 630, 480]]),
    "affordance-sharerobot": (
        "affordance_sharerobot",
        {"x": 500, "y": 400, "width": 140, "height": 80},
        [500, 400, 630, 480],
    ),
    "trajectory-sharerobot": (
        "trajectory_sharerobot",
        [[0, 0], [320, 240], [640, 480]],
        [[0, 0], [320, 240], [632, 480]],
    ),
    "demand-prediction": ("demand_prediction", [[500, 400, 640, 480]], [500, 400, 630, 480]),
}


@pytest.fixture
def evaluate(monkeypatch):
    """(accuracy, logged, metrics) of one answer, given in original pixels, in a task whose file says `frame`."""

    def call(question_type, frame, places):
        name, answer, _ = CASES[question_type]
        monkeypatch.setitem(importlib.import_module(f"task.{name}").TASK_CONFIG, "frame", frame)
        task = load_tasks()[question_type]
        record = {"id": "r", "question_type": question_type, "question": "q", "answer": answer, "extra": {}}
        sol, keywords = reward_arguments(task, record, SIZE, PROCESSED)
        completion = f"<think>t</think><answer>{json.dumps(to_frame(places, frame, SIZE, PROCESSED))}</answer>"
        accuracy, logged = task.accuracy_reward(completion, sol, **keywords)
        row = record | {"record": record, "sol": sol, "image_size": SIZE, "processed_size": PROCESSED, "status": "ok"}
        row |= {"prediction": task.parse_answer(completion, **keywords), "format": 1.0, "accuracy": accuracy}
        return accuracy, logged, task.compute_metrics([row])

    return call


@pytest.mark.parametrize("frame", ["original", "processed", "norm1000", "none"])
@pytest.mark.parametrize("question_type", CASES)
def test_an_equal_answer_scores_the_same_in_every_frame(evaluate, question_type, frame):
    near = CASES[question_type][2]
    accuracy, logged, metrics = evaluate(question_type, frame, near)
    same_accuracy, _, same_metrics = evaluate(question_type, "original", near)
    # A distance is one of the plane of the frame, and 0 to 1000 stretches the sides unequally.
    assert accuracy == pytest.approx(same_accuracy, abs=0.02) and 0.5 < accuracy < 1
    assert logged["scale_suspect"] == metrics["scale_suspect"] == 0
    assert metrics | {"accuracy": 0} == pytest.approx(same_metrics | {"accuracy": 0}, abs=2e-3)


@pytest.mark.parametrize("question_type", CASES)
def test_numbers_of_another_frame_are_suspect_in_a_0_to_1000_task(evaluate, question_type):
    fractions = json.loads(json.dumps(CASES[question_type][2]), parse_int=lambda text: float(text) / 1000)
    accuracy, logged, metrics = evaluate(question_type, "norm1000", fractions)
    assert logged["scale_suspect"] == metrics["scale_suspect"] == 1
    assert accuracy < 0.1
