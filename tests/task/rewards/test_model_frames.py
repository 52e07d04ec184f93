"""Tasks in the frame `processed` follow the scale of the run's model: prompt, truth, reward, metric and drawing."""

import sys
from dataclasses import replace

import pytest
from paths import ROOT
from task_cases import ANSWERS, SIZES, TASKS, said

from dataset.prompts import build_messages, render_question
from task.errors import UserError
from task.rewards.frames import to_frame
from task.rewards.record_check import check_inside
from task.rewards.router import reward_arguments
from task.rewards.self_test import check_rewards
from task.task_loader import load_tasks

sys.path.insert(0, str(ROOT / "scripts"))
from report.shapes import shapes_in

PLACED = [name for name, task in TASKS.items() if task.config["frame"] == "processed"]
ORIGINAL = {  # an answer in pixels of the picture, and the true answer in any form
    "trajectory-sharerobot": ([[64, 48], [320, 240]], [[64, 48], [320, 240]]),
    "affordance-sharerobot": ([64, 48, 320, 240], {"x": 64, "y": 48, "width": 256, "height": 192}),
    "object-detection": ([[64, 48, 320, 240]], [64, 48, 320, 240]),
    "demand-prediction": ([64, 48, 320, 240], [[64, 48, 320, 240]]),
}


@pytest.fixture(scope="module")
def bound():
    """{frame: the tasks of a run whose model writes that frame}."""
    return {frame: load_tasks(coordinate_frame=frame) for frame in ("processed", "norm1000", None)}


def record_of(name: str) -> dict:
    known = {"id": "r", "question": "Q", "images": ["a.png"], "videos": [], "extra": {}}
    return known | {"question_type": name, "answer": ORIGINAL[name][1]}


def test_every_task_with_coordinates_is_tried():
    assert set(PLACED) == set(ORIGINAL)
    assert {name for name in ANSWERS if TASKS[name].config["frame"] == "processed"} == set(ORIGINAL)


@pytest.mark.parametrize("frame", ["processed", "norm1000"])
@pytest.mark.parametrize("name", PLACED)
def test_prompt_truth_reward_metric_and_drawing_have_one_frame(bound, name, frame):
    task, (image_size, processed_size), places = bound[frame][name], SIZES, ORIGINAL[name][0]
    prompt = render_question(task, "Q")
    assert ("0 to 1000" in prompt, "pixels" in prompt) == (frame == "norm1000", frame == "processed")
    assert "{" not in prompt.replace('{"bbox_2d"', "")
    sol, keywords = reward_arguments(task, record_of(name), image_size, processed_size)
    plane = {"processed": processed_size, "norm1000": (1000, 1000)}[frame]
    assert (keywords["image_size"], keywords["processed_size"]) == (image_size, plane)

    completion = said(to_frame(places, frame, image_size, processed_size))
    accuracy, logged = task.accuracy_reward(completion, sol, **keywords)
    assert accuracy == pytest.approx(1.0) and logged["scale_suspect"] == 0
    row = keywords | {"prediction": task.parse_answer(completion, **keywords), "answer": ORIGINAL[name][1], "sol": sol}
    row |= {"status": "ok", "format": 1.0, "accuracy": accuracy}
    metrics = task.compute_metrics([row])
    assert metrics["scale_suspect"] == 0
    assert metrics.get("dfd_px", 0) == pytest.approx(0, abs=1e-9)

    # the report knows the prediction's line alone, not the model
    drawn = shapes_in(row["prediction"], TASKS[name].config["frame"], row["image_size"], row["processed_size"])
    truth = shapes_in(places, "original", image_size, processed_size)
    assert [shape["at"] for shape in drawn] == [pytest.approx(shape["at"], abs=0.01) for shape in truth]


@pytest.mark.parametrize("name", PLACED)
def test_an_answer_on_the_other_scale_scores_less(bound, name):
    sol, keywords = reward_arguments(bound["norm1000"][name], record_of(name), *SIZES)
    pixels = said(to_frame(ORIGINAL[name][0], "processed", *SIZES))
    assert bound["norm1000"][name].accuracy_reward(pixels, sol, **keywords)[0] < 0.5


@pytest.mark.parametrize("name", PLACED)
def test_an_unknown_scale_must_be_given(bound, name):
    with pytest.raises(UserError, match=f"{name} asks for coordinates, .*: give --coordinate_frame processed"):
        build_messages(record_of(name), bound[None][name])
    with pytest.raises(UserError, match="give --coordinate_frame"):
        reward_arguments(bound[None][name], record_of(name), *SIZES)


def test_tasks_without_coordinates_need_no_frame(bound):
    for name in set(TASKS) - set(PLACED):
        render_question(bound[None][name], "Q")
        record = record_of("object-detection") | {"question_type": name, "answer": "1"}
        assert reward_arguments(bound["norm1000"][name], record, *SIZES)[1]["processed_size"] == SIZES[1]


def test_a_prompt_that_names_no_unit_is_refused_unless_the_unit_is_pixels(bound):
    """A task file from before the slot existed asks for pixels in words of its own."""
    task = bound["norm1000"]["affordance-sharerobot"]
    silent = task.config | {"grpo_template": "{Question} Give [x1, y1, x2, y2] in pixels."}
    with pytest.raises(UserError, match=r"affordance_sharerobot.py: .*put \{Coordinates\} into grpo_template"):
        build_messages(record_of(task.name), replace(task, config=silent))
    build_messages(record_of(task.name), replace(task, config=silent, coordinate_frame="processed"))
    build_messages(record_of(task.name), replace(task, config=silent | {"frame": "norm1000"}))
    in_system = silent | {"system_prompt": "Write coordinates {Coordinates}."}
    assert "0 to 1000" in build_messages(record_of(task.name), replace(task, config=in_system))[0]["content"][0]["text"]


@pytest.mark.parametrize("name", PLACED)
def test_self_tests_and_checks_of_records_are_in_pixels_whatever_the_model_writes(bound, name):
    check_rewards([bound["norm1000"][name], bound[None][name]])
    check_inside(bound["norm1000"][name], record_of(name), SIZES[0])
    with pytest.raises(UserError, match="lies outside the picture of 300x200 pixels"):
        check_inside(bound["norm1000"][name], record_of(name), (300, 200))
