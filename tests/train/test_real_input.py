"""Real input: Meta-World experts seen by a camera, and photographs in every file form; skipped without the packages."""

import importlib.util
import json
import math
import sys

import numpy as np
import pytest
from PIL import Image

from dataset.dataset_grpo import build_dataset, load_media, read_row
from scripts.data import make_metaworld_trajectories as metaworld
from scripts.data import make_photo_records as photos
from task.task_loader import load_tasks


def missing(*packages):
    return next((name for name in packages if importlib.util.find_spec(name) is None), None)


needs_photos = pytest.mark.skipif(missing("skimage", "sklearn") is not None, reason="no scikit-image or scikit-learn")


@pytest.fixture(scope="module")
def reach():
    """Meta-World's reach task; skips where the simulator or EGL is missing."""
    if missing("mujoco", "metaworld"):
        pytest.skip("no mujoco or metaworld (extra sim)")
    if not missing("triton"):  # it and Mesa's EGL both bring LLVM, and triton crashes as the second
        importlib.import_module("triton")
    try:
        simulator = metaworld.Simulator("reach")
    except metaworld.SimulatorError as error:
        pytest.skip(str(error))
    yield simulator
    simulator.close()


# ---- Meta-World: geometry without the simulator


def test_pinhole_by_hand():
    eye, aim = np.array([3.0, 0.0, 4.0]), np.zeros(3)  # 5 metres away, looking down
    axes = metaworld.look_at(eye, aim)
    assert np.allclose(axes.T @ axes, np.eye(3)) and np.isclose(np.linalg.det(axes), 1.0)
    field = math.degrees(2 * math.atan(0.1))  # half the picture is a tenth of the distance
    points = np.array([aim, [0.0, 0.5, 0.0], aim + 0.5 * axes[:, 1], 0.5 * (eye + aim)])
    pixels = metaworld.pinhole(points, eye, axes, field, 200)
    # The camera sees +y on its right, since z is up and it looks along -x.
    assert np.allclose(pixels, [[100, 100], [200, 100], [100, 0], [100, 100]])


def test_waypoints_are_evenly_spaced_along_the_path_and_inside():
    corner = np.array([[10.0, 10.0], [10.0, 70.0], [70.0, 70.0]])
    points = np.array(metaworld.waypoints(corner))
    assert points.tolist() == [[10.0, 10.0], [10.0, 50.0], [30.0, 70.0], [70.0, 70.0]]
    long = np.array([[0.0, 5.0 * (i % 2) * 40] for i in range(8)])
    assert len(metaworld.waypoints(long)) == metaworld.MOST
    assert len(metaworld.waypoints(np.array([[10.0, 10.0], [25.0, 10.0]]))) == metaworld.FEWEST
    assert metaworld.waypoints(corner - 11) is None
    assert metaworld.waypoints(corner + 160) is None
    trembling = np.array([[100.0, 100.0], [100.4, 100.0]] * 50)
    assert metaworld.waypoints(trembling) is None


@pytest.mark.parametrize("module", ["mujoco", "metaworld.policies"])
def test_a_missing_simulator_is_one_sentence_and_status_2(module, monkeypatch, tmp_path, capsys):
    if module != "mujoco" and missing("mujoco", "metaworld"):
        pytest.skip("no mujoco or metaworld (extra sim)")
    monkeypatch.setitem(sys.modules, module, None)  # makes the import fail
    assert metaworld.main(["--output_dir", str(tmp_path), "--tasks", "reach"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "Meta-World cannot be imported" in last and "pip install -e '.[sim]'" in last


def test_no_opengl_is_one_sentence_and_status_2(reach, monkeypatch, tmp_path, capsys):
    def refuse(*_):
        raise AttributeError("'NoneType' object has no attribute 'eglQueryString'")

    monkeypatch.setattr(reach.mujoco, "Renderer", refuse)
    assert metaworld.main(["--output_dir", str(tmp_path), "--tasks", "reach"]) == 2
    assert "cannot render here" in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize("flags", [["--train", "0"], ["--tasks", "fly"], []])
def test_wrong_arguments_end_with_status_2(flags, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        metaworld.main([*flags, *(["--output_dir", str(tmp_path)] if flags else [])])
    assert stop.value.code == 2
    assert "error:" in capsys.readouterr().err


# ---- Meta-World: in the simulator


def pad_pixels(simulator):
    """Middle [x, y] of the pixels where the renderer's own segmentation sees the two finger pads and their holders."""
    model = simulator.env.model
    bodies = [model.body(name).id for name in ("leftpad", "rightpad", "leftclaw", "rightclaw")]
    renderer = simulator.renderer
    renderer.enable_segmentation_rendering()
    renderer.update_scene(simulator.env.data, camera=simulator.camera)
    objects, kinds = np.moveaxis(renderer.render(), -1, 0)
    renderer.disable_segmentation_rendering()
    geoms = [i for i in range(model.ngeom) if model.geom_bodyid[i] in bodies]
    hit = (kinds == int(simulator.mujoco.mjtObj.mjOBJ_GEOM)) & np.isin(objects, geoms)
    rows, columns = np.nonzero(hit)
    assert hit.sum() > 30, "the gripper is not in the picture"
    return np.array([columns.mean(), rows.mean()]), np.array([columns.min(), columns.max(), rows.min(), rows.max()])


def test_the_projected_gripper_lies_on_the_gripper_while_it_moves(reach):
    reach.env.seed(0)
    observation, _ = reach.env.reset()
    seen, projected = [], []
    for step in range(41):
        if step % 20 == 0:
            reach.render()
            middle, (left, right, top, bottom) = pad_pixels(reach)
            x, y = reach.project(reach.env.tcp_center[None])[0]
            assert left - 2 <= x <= right + 2 and top - 2 <= y <= bottom + 6, (step, x, y)
            seen.append(middle)
            projected.append([x, y])
        observation = reach.env.step(reach.expert.get_action(observation))[0]
    moved_seen, moved = np.diff(seen, axis=0), np.diff(projected, axis=0)
    assert np.linalg.norm(moved, axis=1).max() > 8, "the hand should have moved"
    assert np.abs(moved - moved_seen).max() < 3, (moved, moved_seen)


def test_an_episode_depends_on_its_seed_alone(reach):
    picture, path = reach.episode(3)
    other_picture, other_path = reach.episode(4)
    again, path_again = reach.episode(3)
    assert np.array_equal(picture, again) and np.array_equal(path, path_again)
    assert not np.array_equal(picture, other_picture) and not np.array_equal(path[-1], other_path[-1])


def test_the_path_ends_at_the_ball(reach):
    picture, path = reach.episode(5)
    x, y = reach.project(reach.env._target_pos[None])[0].round().astype(int)
    assert picture[y, x, 0] > 150 and picture[y, x, 1:].max() < 90, picture[y, x]
    # Success is a hand within 5 cm, and a metre is about 220 pixels here.
    assert np.linalg.norm(path[-1] - reach.project(reach.env._target_pos[None])[0]) < 13


def test_an_expert_that_never_succeeds_is_a_sentence(reach, monkeypatch, tmp_path):
    monkeypatch.setattr(reach, "episode", lambda seed: None)
    with pytest.raises(metaworld.SimulatorError, match="20 times in a row"):
        list(metaworld.make_records("reach", "train", 0, 1, reach, tmp_path))


def test_written_records_load_as_rows(reach, tmp_path, capsys):
    flags = ["--output_dir", str(tmp_path), "--tasks", "reach", "drawer-close", "--train", "2", "--test", "1"]
    assert metaworld.main(flags) == 0
    assert "wrote 4 train and 2 test records" in capsys.readouterr().out
    rows = [
        read_row(row) for split in ("train", "test") for row in build_dataset(tmp_path / f"{split}.yaml", load_tasks())
    ]
    assert len(rows) == 6 and len({row["extra"]["meta_data"]["seed"] for row in rows}) == 3
    for row in rows:
        images, _ = load_media(row)
        size = row["extra"]["meta_data"]["original_width"], row["extra"]["meta_data"]["original_height"]
        assert [image.size for image in images] == [size]
        path = np.array(row["answer"])
        assert metaworld.FEWEST <= len(path) <= metaworld.MOST and path.min() >= 0 and path.max() <= size[0]
    assert {row["question"] for row in rows} == {metaworld.TASKS["reach"], metaworld.TASKS["drawer-close"]}


# ---- photographs


@pytest.fixture(scope="module")
def photo_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    photos.write_records(folder)
    return folder


@needs_photos
def test_every_form_decodes_upright_with_the_answer_on_the_coins(photo_folder):
    rows = [read_row(row) for row in build_dataset(photo_folder / "photos.yaml", load_tasks())]
    raw = {row["id"]: Image.open(row["images"][0]) for row in rows}
    assert {picture.mode for picture in raw.values()} == {"L", "RGB", "RGBA", "I;16"}
    assert {picture.format for picture in raw.values()} == {"JPEG", "PNG"}
    assert len({picture.size for picture in raw.values()}) == 8
    for row in rows:
        (image,) = load_media(row)[0]
        size = row["extra"]["meta_data"]
        assert image.mode == "RGB" and image.size == (size["original_width"], size["original_height"])
        if size["form"] == "turned":
            assert raw[row["id"]].size == image.size[::-1] and raw[row["id"]].getexif()[0x0112] == 6
        if "coins" not in row["id"]:
            continue
        light = np.asarray(image.convert("L"), dtype=float)
        for x, y in row["answer"]:
            # A coin is lighter than the dark ground left or right of it; made transparent, the ground is white.
            x, y, reach = round(x), round(y), round(4 * image.width / 384)
            coin = light[y - reach : y + reach + 1, x - reach : x + reach + 1].mean()
            ground = light[[0, -1]].mean()
            assert (coin < ground - 20) if size["form"] == "alpha" else (coin > ground + 20), (
                row["id"],
                x,
                y,
                coin,
                ground,
            )


@needs_photos
def test_the_four_rows_of_coins_have_six_each_from_left_to_right():
    photo, mask, tasks = photos.coins()
    assert photo.shape == (303, 384) and len(tasks) == 4
    heights = [np.mean([y for _, y in path]) for _, path in tasks]
    assert heights == sorted(heights) and min(np.diff(heights)) > 50
    for _, path in tasks:
        xs = [x for x, _ in path]
        assert len(path) == 6 and xs == sorted(xs) and min(np.diff(xs)) > 30
        assert all(mask[round(y), round(x)] for x, y in path)


def test_missing_photographs_are_one_sentence_and_status_2(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "skimage", None)
    assert photos.main(["--output_dir", str(tmp_path)]) == 2
    assert "pip install -e '.[photos]'" in capsys.readouterr().err


# ---- training and evaluation on them


def train_and_evaluate(monkeypatch, tiny_model_dir, recipe, train_set, test_set, folder):
    """Two steps of train.py with a recipe, then eval.py, as from the command line; returns metrics.json."""
    import train
    from scripts.eval import eval as evaluation

    flags = ["--config", f"config/recipes/{recipe}.yaml", "--dataset_name", str(train_set), "--model_name_or_path"]
    flags += [str(tiny_model_dir), "--output_dir", str(folder / "run"), "--max_steps", "2", "--think_num", "2"]
    flags += [
        "--answer_num",
        "2",
        "--per_device_train_batch_size",
        "4",
        "--max_pixels",
        "12544",
        "--logging_steps",
        "1",
    ]
    monkeypatch.chdir(tiny_model_dir.parents[2])
    monkeypatch.setattr(sys, "argv", ["train.py", *flags])
    train.main()
    state = json.loads((folder / "run" / "trainer_state.json").read_text())
    assert state["global_step"] == 2
    assert all(math.isfinite(log["loss"]) for log in state["log_history"] if "loss" in log)
    flags = ["--adapter_path", str(folder / "run"), "--dataset", str(test_set), "--output_dir", str(folder / "eval")]
    assert evaluation.main([*flags, "--max_new_tokens", "80"]) == 0
    return json.loads((folder / "eval" / "metrics.json").read_text())


@pytest.mark.slow
@needs_photos
def test_photographs_train_and_evaluate(photo_folder, tiny_model_dir, tmp_path, monkeypatch, one_thread):
    manifest = photo_folder / "photos.yaml"
    result = train_and_evaluate(monkeypatch, tiny_model_dir, "grpo_ma_demo", manifest, manifest, tmp_path)
    assert result["counts"]["items"] == 20 and "load_error" not in result["counts"]
    metrics = result["metrics"]["trajectory-sharerobot"]
    assert math.isfinite(metrics["dfd_px"]) and 0 <= metrics["accuracy"] <= 1


@pytest.mark.slow
def test_meta_world_trains_and_evaluates(reach, tiny_model_dir, tmp_path, monkeypatch, one_thread):
    metaworld.write_records(tmp_path, ["reach", "door-open"], {"train": 2, "test": 2})
    sets = tmp_path / "train.yaml", tmp_path / "test.yaml"
    result = train_and_evaluate(monkeypatch, tiny_model_dir, "grpo_ma_metaworld", *sets, tmp_path)
    assert result["counts"]["items"] == 4 and "load_error" not in result["counts"]
    assert math.isfinite(result["metrics"]["trajectory-sharerobot"]["dfd_px"])
