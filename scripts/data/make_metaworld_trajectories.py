"""Makes trajectory records from Meta-World's scripted experts: a picture, an instruction, the gripper's path.

    pip install -e '.[sim]'
    python scripts/data/make_metaworld_trajectories.py --output_dir runs/metaworld     # 250 train, 50 test records

An expert of Meta-World (Yu et al. 2019, arXiv 1910.10897; MIT licence) solves a task in MuJoCo; the path of the point
between its fingertips is projected into the picture of the start and resampled to 3 to 8 evenly spaced way-points. A
record depends only on its task, its seed and mujoco's version; train and test have different seeds. Needs no display,
but EGL (on Debian or Ubuntu: apt-get install libegl1 libgl1-mesa-dri), or MUJOCO_GL set to osmesa or glfw.

Written to --output_dir: train.yaml and test.yaml (manifests), train.jsonl and test.jsonl, images/. Exit status 2 if
the simulator or EGL is missing, or for a wrong argument.
"""

import argparse
import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

TASKS = {
    "reach": "Reach the red ball.",
    "push": "Push the red puck to the green ball.",
    "pick-place": "Pick up the red puck and bring it to the blue ball.",
    "door-open": "Open the door of the black safe by its handle.",
    "drawer-open": "Open the green drawer.",
    "drawer-close": "Close the green drawer.",
    "button-press-topdown": "Press the red button from above.",
    "window-open": "Slide the window open by its handle.",
    "faucet-open": "Turn the red handle of the faucet.",
    "plate-slide": "Slide the black plate into the goal.",
}
SIDE = 224  # side of a picture in pixels
CAMERA = "corner2"  # the camera of the model that is given the view below; its own view is farther away and upside down
EYE, AIM, FIELD = (1.15, -0.1, 1.0), (0.0, 0.68, 0.12), 34.0  # metres, metres, degrees from top to bottom
WAYPOINT_GAP = 40.0  # pixels of path per way-point
FEWEST, MOST = 3, 8
STILL = 1.0  # pixels; smaller moves are jitter of the hand
TEST_SEEDS = 1_000_000  # train seeds count up from 0, test seeds from here
MISSES = 20  # so many consecutive failures of an expert are not by chance


class SimulatorError(Exception):
    """The simulator cannot run here; the message says what to install."""


class Simulator:
    """One Meta-World task with its expert, seen by a fixed camera.

    Args:
        task: a key of `TASKS`.

    Raises:
        SimulatorError: mujoco, metaworld or the OpenGL library is missing.
    """

    def __init__(self, task: str):
        mujoco, environments, experts = _load_simulator()
        self.mujoco = mujoco
        self.env = environments[f"{task}-v3-goal-observable"]()
        # Otherwise every reset repeats the first layout, or uses numpy's global generator.
        self.env.seeded_rand_vec, self.env._freeze_rand_vec = True, False
        self.expert = experts[f"{task}-v3"]()
        self.camera = self.env.model.camera(CAMERA).id
        self._aim_camera()
        try:
            self.renderer = mujoco.Renderer(self.env.model, SIDE, SIDE)
        except Exception as error:  # each OpenGL library has its own exceptions
            raise SimulatorError(_no_opengl(error)) from error

    def _aim_camera(self) -> None:
        model = self.env.model
        turn = np.zeros(4)
        self.mujoco.mju_mat2Quat(turn, look_at(np.array(EYE), np.array(AIM)).ravel())
        model.cam_pos[self.camera], model.cam_quat[self.camera], model.cam_fovy[self.camera] = EYE, turn, FIELD
        model.vis.quality.shadowsize = 1024  # Meta-World's 4096 is ten times slower on a CPU

    def episode(self, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
        """(picture of the start SIDE x SIDE x 3, gripper's path N x 2 in its pixels); None if the expert fails."""
        self.env.seed(seed)
        observation, _ = self.env.reset()
        picture = self.render()
        hand = [self.env.tcp_center.copy()]
        for _ in range(self.env.max_path_length):
            observation, _, _, _, info = self.env.step(self.expert.get_action(observation))
            hand.append(self.env.tcp_center.copy())
            if info["success"]:
                return picture, self.project(np.array(hand))
        return None

    def render(self) -> np.ndarray:
        self.mujoco.mj_forward(self.env.model, self.env.data)
        # The task, not the model file, places the ball of the goal, and mj_forward resets it.
        for name, place in self.env._target_site_config:
            self.env.data.site(name).xpos = place
        self.renderer.update_scene(self.env.data, camera=self.camera)
        return self.renderer.render()

    def project(self, points: np.ndarray) -> np.ndarray:
        """World points (N x 3, metres) in pixels of the picture (N x 2), origin at the top left corner."""
        data = self.env.data
        axes = data.cam_xmat[self.camera].reshape(3, 3)
        return pinhole(points, data.cam_xpos[self.camera], axes, self.env.model.cam_fovy[self.camera], SIDE)

    def close(self) -> None:
        self.renderer.close()
        self.env.close()


def look_at(eye: np.ndarray, aim: np.ndarray) -> np.ndarray:
    """Axes of a camera (3 x 3, columns right, up, back) that looks from `eye` to `aim` with the world's z upwards."""
    back = (eye - aim) / np.linalg.norm(eye - aim)
    right = np.cross([0.0, 0.0, 1.0], back)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(back, right), back], axis=1)


def pinhole(points: np.ndarray, eye: np.ndarray, axes: np.ndarray, field: float, side: int) -> np.ndarray:
    """World points (N x 3) in pixels (N x 2) of a square picture; `field` is the view's angle in degrees.

    >>> pinhole(np.array([[0.0, 0.0, -2.0], [2.0, 0.0, -2.0]]), np.zeros(3), np.eye(3), 90.0, 100).tolist()
    [[50.0, 50.0], [100.0, 50.0]]
    """
    seen = (points - eye) @ axes
    scale = side / 2 / np.tan(np.deg2rad(field) / 2)
    return side / 2 + scale * np.stack([seen[:, 0], -seen[:, 1]], axis=1) / -seen[:, 2:]


def waypoints(path: np.ndarray) -> list[list[float]] | None:
    """FEWEST to MOST evenly spaced points along a path (N x 2, pixels); None if it leaves the picture or is too short.

    >>> waypoints(np.array([[10.0, 10.0], [10.2, 10.1], [90.0, 10.0]]))
    [[10.0, 10.0], [50.0, 10.0], [90.0, 10.0]]
    """
    kept = [path[0]]
    for point in path[1:-1]:
        if np.linalg.norm(point - kept[-1]) >= STILL:
            kept.append(point)
    line = np.array([*kept, path[-1]])
    reached = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(line, axis=0), axis=1))])
    if line.min() < 0 or line.max() > SIDE or reached[-1] < WAYPOINT_GAP / 4:
        return None
    at = np.linspace(0.0, reached[-1], int(np.clip(round(reached[-1] / WAYPOINT_GAP) + 1, FEWEST, MOST)))
    return np.stack([np.interp(at, reached, line[:, axis]) for axis in (0, 1)], axis=1).round(1).tolist()


def make_records(task: str, split: str, first_seed: int, count: int, simulator: Simulator, folder: Path):
    """Yields `count` records of seeds from `first_seed` on, and writes their pictures; skips seeds without a path.

    Raises:
        SimulatorError: the expert failed MISSES times in a row.
    """
    seed, misses = first_seed, 0
    while count:
        result = simulator.episode(seed)
        path = result and waypoints(result[1])
        if path:
            name = f"metaworld-{split}-{task}-{seed:07d}"
            Image.fromarray(result[0]).save(folder / "images" / f"{name}.png")
            yield to_record(task, seed, name, path)
            count -= 1
        misses = 0 if path else misses + 1
        if misses == MISSES:
            raise SimulatorError(
                f"task {task}: the scripted expert gave no path {MISSES} times in a row (seeds up to {seed}): "
                "another version behaves differently; metaworld 3.1.1 with mujoco 3.8.1 or 3.3.0 is known to work."
            )
        seed += 1


def to_record(task: str, seed: int, name: str, path: list) -> dict:
    return {
        "id": name,
        "image": f"images/{name}.png",
        "question": TASKS[task],
        "question_type": "trajectory-sharerobot",
        "answer": path,
        "meta_data": {
            "original_dataset": "metaworld",
            "original_width": SIDE,
            "original_height": SIDE,
            "task": f"{task}-v3",
            "seed": seed,
        },
    }


def write_records(folder: Path, tasks: list[str], counts: dict[str, int]) -> None:
    """Writes both splits; `counts` is the number of records per task, by split."""
    from tqdm import tqdm

    (folder / "images").mkdir(parents=True, exist_ok=True)
    records = {split: [] for split in counts}
    with tqdm(total=len(tasks) * sum(counts.values()), unit="record", desc="Meta-World") as bar:
        for task in tasks:
            bar.set_postfix_str(task, refresh=False)
            simulator = Simulator(task)
            for split, count in counts.items():
                first_seed = TEST_SEEDS if split == "test" else 0
                for record in make_records(task, split, first_seed, count, simulator, folder):
                    records[split].append(record)
                    bar.update()
            simulator.close()
    for split, rows in records.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
        manifest = f"datasets:\n- json_path: {split}.jsonl\n  data_modality: image\n  sampling_strategy: all\n"
        (folder / f"{split}.yaml").write_text(manifest, encoding="utf-8")


def _load_simulator():
    """(mujoco, environments by name, experts by name)."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    warnings.filterwarnings("ignore", message="Constant.* may be too high")  # Meta-World warns once per policy
    try:
        import mujoco
    except ImportError as error:
        raise SimulatorError(_no_packages(error)) from error
    except Exception as error:  # without the library PyOpenGL fails at import, with various errors
        raise SimulatorError(_no_opengl(error)) from error
    try:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
        from metaworld.policies import ENV_POLICY_MAP
    except ImportError as error:
        raise SimulatorError(_no_packages(error)) from error
    return mujoco, ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE, ENV_POLICY_MAP


def _no_packages(error: Exception) -> str:
    return f"Meta-World cannot be imported ({error}): install the extra, pip install -e '.[sim]'."


def _no_opengl(error: Exception) -> str:
    return (
        f"MUJOCO_GL={os.environ['MUJOCO_GL']} cannot render here ({error}): install EGL (on Debian or Ubuntu: "
        "apt-get install libegl1 libgl1-mesa-dri) and leave MUJOCO_GL unset, or set it to osmesa or glfw."
    )


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="folder to write")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help="default: all")
    parser.add_argument("--train", type=int, default=25, help="train records of each task (default 25)")
    parser.add_argument("--test", type=int, default=5, help="test records of each task (default 5)")
    args = parser.parse_args(argv)
    for name in ("train", "test"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: give at least 1 record a task")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    counts = {"train": args.train, "test": args.test}
    try:
        write_records(args.output_dir, args.tasks, counts)
    except SimulatorError as error:
        print(error, file=sys.stderr)
        return 2
    total = {split: count * len(args.tasks) for split, count in counts.items()}
    print(f"wrote {total['train']} train and {total['test']} test records to {args.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
