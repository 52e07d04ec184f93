"""From a picture file to a scored answer: every orientation, size and frame of coordinates."""

import json

import pytest
from PIL import Image, ImageOps

from dataset.dataset_grpo import load_media, read_row, rows_from_records
from task.processing_utils import scale_bbox_xyxy
from task.rewards.frames import from_frame, to_frame
from task.rewards.router import reward_arguments
from task.task_loader import Task, load_tasks

UPRIGHT, LABEL = (96, 160), [12, 20, 60, 52]
INVERSE = {5: 5, 6: 8, 7: 7, 8: 6}


def photo(path, orientation: int) -> None:
    """A portrait with a red box at LABEL, stored as a camera held that way stores it; orientation 0 means no tag."""
    image = Image.new("RGB", UPRIGHT, "white")
    image.paste("red", tuple(LABEL))
    if not orientation:
        image.save(path)
        return
    image.getexif()[0x0112] = INVERSE.get(orientation, orientation)
    stored = ImageOps.exif_transpose(image)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(path, exif=exif)


def iou(a, b) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_box_labelled_as_displayed_scores_one_after_the_whole_way(tmp_path, tiny_vlm, orientation):
    module = tiny_vlm[0]
    photo(tmp_path / "a.png", orientation)
    photo(tmp_path / "plain.png", 0)
    corners = [[12.0, 20.0], [60.0, 52.0]]
    data = [
        {"id": name, "question": "q", "question_type": "trajectory-sharerobot", "answer": corners, "image": name}
        for name in ("a.png", "plain.png")
    ]
    tasks = load_tasks()
    records = [read_row(row) for row in rows_from_records(data, tasks, image_root=str(tmp_path))]
    prompts = [module.encode(record["messages"], *load_media(record)) for record in records]
    assert prompts[0].media_key == prompts[1].media_key, "the model sees the photograph upright"
    assert prompts[0].image_sizes == [UPRIGHT]

    processed = prompts[0].processed_sizes[0]
    assert processed == (84, 168)
    seen = to_frame(LABEL, "processed", UPRIGHT, processed)
    assert seen == pytest.approx([12 * 84 / 96, 20 * 168 / 160, 60 * 84 / 96, 52 * 168 / 160])
    assert iou(from_frame(seen, "processed", UPRIGHT, processed), LABEL) == pytest.approx(1.0)
    assert iou(seen, LABEL) < 0.9, "without the way back it would not be 1"

    task = tasks["trajectory-sharerobot"]
    sol, keywords = reward_arguments(task, records[0], prompts[0].image_sizes[0], processed)
    completion = f"<think>t</think><answer>{json.dumps([seen[:2], seen[2:]])}</answer>"
    assert task.accuracy_reward(completion, sol, **keywords)[0] == pytest.approx(1.0)


SIZES = [(5, 7), (27, 27), (29, 41), (200, 1), (640, 480), (481, 641), (4000, 3000), (100, 20000)]


@pytest.mark.parametrize("size", SIZES)
def test_an_answer_keeps_its_place_in_every_frame_and_size(tiny_vlm, size):
    """Pictures smaller than a cell, slivers, and those over the pixel budget: the actual grid gives the frame."""
    module = tiny_vlm[0]
    turn = [{"role": "user", "content": [{"type": "image", "index": 0}, {"type": "text", "text": "?"}]}]
    processed = module.encode(turn, [Image.new("RGB", size)]).processed_sizes[0]
    assert all(side % 28 == 0 for side in processed)
    box = [0.1 * size[0], 0.25 * size[1], 0.9 * size[0], size[1]]
    for frame, plane in {"original": size, "processed": processed, "norm1000": (1000, 1000)}.items():
        moved = to_frame(box, frame, size, processed)
        assert moved == pytest.approx([0.1 * plane[0], 0.25 * plane[1], 0.9 * plane[0], plane[1]])
        assert from_frame(moved, frame, size, processed) == pytest.approx(box)
        config = {"frame": frame}
        task = Task("t", None, config, unused, unused, process_answer=scale_bbox_xyxy)
        sol, _ = reward_arguments(task, {"question_type": "t", "answer": box}, size, processed)
        assert sol == pytest.approx(moved)


def unused(completion, sol, **kw):
    raise AssertionError("only the frame is asked for")
