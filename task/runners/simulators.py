"""Robot simulators that execute a plan of moves: Meta-World's Sawyer and gymnasium-robotics' Fetch, in MuJoCo.

A plan is a list of moves (x, y, z, grip): the target position of the hand in centimetres in the robot's frame, and the
state of the gripper on the way there, 0 open or 1 closed. Nothing is rendered. Environments are expensive to create, so
they are reused; an episode depends only on its seed.
"""

import contextlib
import functools
import os
import threading
import warnings
from collections import OrderedDict

import numpy as np

from task.errors import UserError
from task.runners.optional import MissingPackage, need

Plan = list[list[float]]
MOST_STEPS = 500  # per plan
SETTLE_STEPS = 12  # for the gripper to open or close, and for the hand to come to rest after the last move
KEPT = 8  # environments


class Sawyer:
    """One Meta-World task (Yu et al. 2019, arXiv 1910.10897; MIT), such as "drawer-close"."""

    step_length, near = 0.01, 0.002  # metres the hand's target moves per step; distance that counts as reached

    def __init__(self, task: str):
        environments, self.experts = load_metaworld()
        name = f"{task}-v3-goal-observable"
        if name not in environments:
            raise UserError(f"Meta-World has no task {task!r}: known are {', '.join(sawyer_tasks())}.")
        self.task, self.env = task, environments[name]()
        # Otherwise every reset repeats the first layout, or uses numpy's global generator.
        self.env.seeded_rand_vec, self.env._freeze_rand_vec = True, False

    def reset(self, seed: int) -> None:
        self.env.seed(seed)
        self.observation, _ = self.env.reset()

    def led_to(self) -> np.ndarray:
        """The current target of the hand (metres). The hand lags behind, and stops short if it is blocked."""
        return self.env.data.mocap_pos[0].copy()

    def step(self, direction: np.ndarray, grip: float) -> bool:
        action = np.array([*direction, 1.0 if grip else -1.0], dtype=np.float32)
        self.observation, _, _, _, info = self.env.step(action)
        return bool(info["success"])

    def expert_plan(self, seed: int) -> Plan | None:
        """The scripted expert's path in this episode as a plan, or None if it fails."""
        self.reset(seed)
        expert = self.experts[f"{self.task}-v3"]()
        way, after = [], 0
        for _ in range(MOST_STEPS - SETTLE_STEPS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                action = np.clip(expert.get_action(self.observation), -1, 1)
            self.observation, _, _, _, info = self.env.step(action)
            way.append([*self.led_to(), float(action[3] > 0)])
            after += int(info["success"])
            if after == SETTLE_STEPS:
                return as_plan(np.array(way))
        return None


class Fetch:
    """One Fetch task of gymnasium-robotics (Plappert et al. 2018, arXiv 1802.09464; MIT), such as "pick-and-place"."""

    step_length, near = 0.05, 0.01

    def __init__(self, task: str):
        if task not in FETCH_TASKS:
            raise UserError(f"Fetch has no task {task!r}: known are {', '.join(FETCH_TASKS)}.")
        gymnasium = load_fetch()
        self.task, self.env = task, gymnasium.make(FETCH_TASKS[task], max_episode_steps=10 * MOST_STEPS).unwrapped

    def reset(self, seed: int) -> None:
        self.observation, _ = self.env.reset(seed=seed)

    def led_to(self) -> np.ndarray:
        return self.observation["observation"][:3].copy()

    def step(self, direction: np.ndarray, grip: float) -> bool:
        action = np.array([*direction, -1.0 if grip else 1.0], dtype=np.float32)
        self.observation, _, _, _, info = self.env.step(action)
        return bool(info["is_success"])

    def expert_plan(self, seed: int) -> Plan | None:
        """A plan from the true positions, as Fetch has no expert; None for "push" and "slide"."""
        self.reset(seed)
        goal = self.observation["desired_goal"]
        if self.task == "reach":
            return centimetres([[*goal, 1]])
        thing, above = self.observation["achieved_goal"], np.array([0, 0, 0.1])
        if self.task == "pick-and-place":
            return centimetres([[*thing + above, 0], [*thing, 0], [*thing, 1], [*goal, 1]])
        return None


FETCH_TASKS = {
    "reach": "FetchReach-v4",
    "push": "FetchPush-v4",
    "pick-and-place": "FetchPickAndPlace-v4",
    "slide": "FetchSlide-v4",
}
SIMULATORS = {"metaworld": Sawyer, "fetch": Fetch}


class Pool:
    """A cache of environments with least-recently-used eviction; runs one episode at a time."""

    def __init__(self):
        self._kept: OrderedDict[tuple[str, str], Sawyer | Fetch] = OrderedDict()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def use(self, simulator: str, task: str):
        """The environment, reserved for the block. UserError for an unknown name."""
        if simulator not in SIMULATORS:
            raise UserError(f"there is no simulator {simulator!r}: known are {', '.join(SIMULATORS)}.")
        with self._lock:
            environment = self._kept.pop((simulator, task), None) or SIMULATORS[simulator](task)
            self._kept[simulator, task] = environment
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)[1].env.close()
            yield environment


POOL = Pool()


def execute(environment, seed: int, plan: Plan) -> tuple[bool, int]:
    """(whether the task is solved once the plan has ended and the hand is at rest, number of simulator steps)."""
    environment.reset(seed)
    steps, solved, held = 0, False, plan[0][3]
    for number, (*place, grip) in enumerate(plan):
        target = np.array(place) / 100
        rest = SETTLE_STEPS if grip != held or number == len(plan) - 1 else 0  # steps to spend once there
        there, held = False, grip
        while steps < MOST_STEPS and (rest > 0 or not there):
            gap = target - environment.led_to()
            rest -= there
            solved = environment.step(np.clip(gap / environment.step_length, -1, 1), grip)
            steps += 1
            after = np.abs(target - environment.led_to()).max()
            # Blocked or out of reach, it comes no nearer: counts as reached.
            there = there or after <= environment.near or np.abs(gap).max() - after < 1e-4
    return solved, steps


def as_plan(way: np.ndarray, tolerance: float = 0.003) -> Plan:
    """A short plan that follows a path (N x 4: metres and grip) within `tolerance` metres, all grip changes kept."""
    changes = np.flatnonzero(np.diff(way[:, 3])) + 1
    moves = []
    for part in np.split(way, changes):
        corners = corners_of(part[:, :3], tolerance)
        moves += [part[place].tolist() for place in corners]
    return centimetres(moves)


def corners_of(line: np.ndarray, tolerance: float) -> list[int]:
    """Indices of the points of a line (N x 3) that approximate it within `tolerance` (Douglas and Peucker, 1973)."""
    kept, open_parts = {0, len(line) - 1}, [(0, len(line) - 1)]
    while open_parts:
        first, last = open_parts.pop()
        if last - first < 2:
            continue
        inner, along = line[first + 1 : last] - line[first], line[last] - line[first]
        share = np.clip(inner @ along / max(along @ along, 1e-12), 0, 1)
        off = np.linalg.norm(inner - share[:, None] * along, axis=1)
        farthest = int(off.argmax())
        if off[farthest] > tolerance:
            middle = first + 1 + farthest
            kept.add(middle)
            open_parts += [(first, middle), (middle, last)]
    return sorted(kept)


def centimetres(moves) -> Plan:
    return [[*(round(float(metres) * 100, 1) for metres in move[:3]), int(move[3])] for move in moves]


def sawyer_tasks() -> list[str]:
    """The names of Meta-World's 50 tasks."""
    environments, _ = load_metaworld()
    return [name.removesuffix("-v3-goal-observable") for name in environments]


@functools.cache
def load_metaworld() -> tuple[dict, dict]:
    """(environments by name, experts by name)."""
    load_mujoco()
    need("metaworld", "sim")
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
    from metaworld.policies import ENV_POLICY_MAP

    return ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE, ENV_POLICY_MAP


@functools.cache
def load_fetch():
    """gymnasium with the Fetch tasks in its registry."""
    load_mujoco()
    need("gymnasium_robotics", "sim")
    import gymnasium
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    return gymnasium


def load_mujoco() -> None:
    os.environ.setdefault("MUJOCO_GL", "egl")
    need("mujoco", "sim")
    try:
        import mujoco  # noqa: F401
    except Exception as error:  # without the library PyOpenGL fails at import, with various errors
        raise MissingPackage(
            f"MUJOCO_GL={os.environ['MUJOCO_GL']} does not work here ({error}): install EGL (on Debian or Ubuntu: "
            "apt-get install libegl1 libgl1-mesa-dri) and leave MUJOCO_GL unset."
        ) from error
