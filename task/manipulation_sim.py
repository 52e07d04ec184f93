"""Control of a robot arm: from one picture and an instruction to a plan of moves, executed in a simulator.

Data: Meta-World's 50 tasks (Yu et al. 2019, arXiv 1910.10897; MIT) and gymnasium-robotics' Fetch tasks (Plappert et al.
2018, arXiv 1802.09464; MIT), both on MuJoCo (Apache-2.0), extra `sim`; scripts/data/make_manipulation_records.py makes
records. A record's answer identifies the episode: {"simulator": "metaworld" or "fetch", "task": "drawer-close",
"seed": 7}.

The plan is [[x, y, z, grip], ...]: 1 to 32 moves, each a target position of the hand in centimetres in the robot's
frame, and the state of the gripper on the way there, 0 open or 1 closed. Reward (sparse): 1.0 if the simulator reports
success after the plan has ended and the hand has come to rest, else 0.0. A plan that cannot be read or executed scores
0. Nothing is rendered, but mujoco still needs the OpenGL library that MUJOCO_GL names (egl by default). Metric:
success rate.
"""

from statistics import fmean

from task.errors import UserError
from task.parsing.answers import answer_text, parse_boxes, split_completion
from task.runners.simulators import MOST_STEPS, POOL, execute

MOST_MOVES = 32
FARTHEST = 300.0  # centimetres; no arm reaches that far

TASK_CONFIG = {
    "task_type": "manipulation-sim",
    "grpo_template": (
        "{Question} First think inside <think> </think>, then give the plan inside <answer> </answer> "
        "as [[x, y, z, grip], ...] in centimetres, grip 0 for open and 1 for closed."
    ),
    "description": "a plan of moves for a robot arm, executed in a simulator, scored by success",
    "input_format": "one picture of the scene and a task in words",
    "output_format": "[[x, y, z, grip], ...], 1 to 32 moves",
    "frame": "none",
}

SELF_TEST = {
    "record": {"answer": {"simulator": "metaworld", "task": "drawer-close", "seed": 0}},
    "right": "<think>push it shut</think><answer>[[0, 40, 9, 1], [0, 90, 9, 1]]</answer>",
    "wrong": "<think>stay</think><answer>[[0, 60, 20, 0]]</answer>",
}

METRICS = {"*_success": "higher", "parse_failure_rate": "lower", "moves": "lower"}


def format_reward(completion, sol, **kw):
    """1.0 for exactly one thought and one answer block, the answer a plan of 1 to 32 moves; else 0.0."""
    parts = split_completion(completion, kw.get("thought_end", "</think>"))
    return float(parts is not None and _plan_in(parts[1]) is not None)


def accuracy_reward(completion, sol, **kw):
    """(1.0 or 0.0, {"steps": simulator steps, "parse_fail", "not_executed": 0 or 1}); None without an episode."""
    if sol is None:
        return None
    simulator, task, seed = _episode(sol, kw.get("id"))
    plan = parse_answer(completion, **kw)
    if plan is None:
        return 0.0, {"steps": 0, "parse_fail": 1, "not_executed": 0}
    with POOL.use(simulator, task) as environment:
        try:
            solved, steps = execute(environment, seed, plan)
        except Exception:
            # Creation and reset succeeded, so the plan made the physics diverge.
            return 0.0, {"steps": MOST_STEPS, "parse_fail": 0, "not_executed": 1}
    return float(solved), {"steps": steps, "parse_fail": 0, "not_executed": 0}


def parse_answer(completion, **kw):
    """The plan [[x, y, z, grip], ...], or None."""
    return _plan_in(answer_text(completion, kw.get("thought_end", "</think>")))


def compute_metrics(predictions, **kw):
    """parse_failure_rate, mean moves per plan, and the success rate of each task, TASK_success."""
    rows = [row for row in predictions if row["status"] != "load_error" and row["answer"] is not None]
    if not rows:
        return {}
    by_task: dict[str, list[float]] = {}
    for row in rows:
        by_task.setdefault(row["answer"]["task"], []).append(row["accuracy"] or 0.0)
    plans = [row["prediction"] for row in rows if row["prediction"]]
    return {
        "parse_failure_rate": fmean(row["prediction"] is None for row in rows),
        "moves": fmean(map(len, plans)) if plans else 0.0,
        **{f"{name}_success": fmean(values) for name, values in by_task.items()},
    }


def _plan_in(answer):
    plan = parse_boxes(answer)  # rows of four numbers each, as boxes are
    if plan is None or not 1 <= len(plan) <= MOST_MOVES:
        return None
    fits = all(grip in (0, 1) and all(abs(number) <= FARTHEST for number in place) for *place, grip in plan)
    return plan if fits else None


def _episode(sol, record_id) -> tuple[str, str, int]:
    if isinstance(sol, dict):
        simulator, task, seed = (sol.get(key) for key in ("simulator", "task", "seed"))
        if isinstance(simulator, str) and isinstance(task, str) and type(seed) is int and 0 <= seed < 2**31:
            return simulator, task, seed
    raise UserError(
        f'record {record_id}: the answer must be {{"simulator": "metaworld" or "fetch", "task": name, "seed": whole '
        f"number}}, got {sol!r}: correct it."
    )
