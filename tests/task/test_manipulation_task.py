"""The manipulation task: plans carried out in Meta-World and Fetch; skipped without the simulators or EGL."""

import json
import random
import resource
import sys

import numpy as np
import pytest
from paths import ROOT
from task_cases import DEGENERATE, metrics, mutated, prediction, said

from task import manipulation_sim
from task.manipulation_sim import accuracy_reward, format_reward, parse_answer
from task.runners import simulators
from task.runners.optional import MissingPackage
from task.runners.simulators import POOL, Pool, as_plan, corners_of, execute, load_fetch, load_metaworld

NAME = "manipulation-sim"
DRAWER = {"simulator": "metaworld", "task": "drawer-close", "seed": 0}
SHUT = [[0, 40, 9, 1], [0, 90, 9, 1]]
SPACE = {"metaworld": ([-40, 40, 5], [40, 90, 40]), "fetch": ([105, 40, 42], [155, 110, 80])}  # what the hands reach
TASKS = (
    "metaworld/reach", "metaworld/push", "metaworld/drawer-close", "metaworld/button-press-topdown",
    "metaworld/door-open", "fetch/reach", "fetch/pick-and-place",
)  # fmt: skip


@pytest.fixture(scope="module")
def sawyer():
    try:
        load_metaworld()
    except MissingPackage as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def fetch():
    try:
        load_fetch()
    except MissingPackage as error:
        pytest.skip(str(error))


# ---- Plans, without a simulator


@pytest.mark.parametrize(
    ("answer", "moves"),
    [
        ("[[0, 40, 9, 1], [0, 90, 9, 0]]", 2),
        ("[0.5, 40, 9, 1]", 1),
        ("```json\n[[0, 40, 9, 1]]\n```", 1),
        ("[]", None),
        ("[[0, 40, 9]]", None),
        ("[[0, 40, 9, 0.5]]", None),
        ("[[0, 40, 9, 2]]", None),
        ("[[0, 40, 301, 1]]", None),
        (json.dumps([[0, 40, 9, 1]] * 33), None),
        ("up, then down", None),
    ],
)
def test_a_plan_is_read(answer, moves):
    plan = parse_answer(said(answer))
    assert (plan and len(plan)) == moves
    assert format_reward(said(answer), DRAWER) == float(moves is not None)


def test_degenerate_texts_score_zero_without_a_simulator(monkeypatch):
    monkeypatch.setattr(manipulation_sim, "POOL", None)
    for text in [*DEGENERATE, said(""), said("[[NaN, 1e999, 1, 1]]")]:
        assert format_reward(text, DRAWER) == 0.0
        assert accuracy_reward(text, DRAWER) == (0.0, {"steps": 0, "parse_fail": 1, "not_executed": 0})


def test_the_episode_is_checked():
    for sol in (7, {}, {**DRAWER, "seed": "0"}, {**DRAWER, "seed": -1}, {**DRAWER, "task": None}):
        with pytest.raises(ValueError, match="record r9: the answer must be"):
            accuracy_reward(said(SHUT), sol, id="r9")
    with pytest.raises(ValueError, match="no simulator 'unity'"):
        accuracy_reward(said(SHUT), {**DRAWER, "simulator": "unity"})
    assert accuracy_reward(said(SHUT), None) is None


def test_a_way_becomes_few_moves():
    way = np.array([[0, i / 100, 0, 0] for i in range(11)] + [[0, 0.1, i / 100, 1] for i in range(11)])
    assert as_plan(way) == [[0, 0, 0, 0], [0, 10, 0, 0], [0, 10, 0, 1], [0, 10, 10, 1]]
    bend = np.array([[0, 0, 0], [1, 0, 0], [2, 0, 0], [2, 1, 0], [2, 2, 0]], dtype=float)
    assert corners_of(bend, 0.1) == [0, 2, 4]


def test_a_simulator_that_breaks_scores_zero(monkeypatch):
    class Broken:
        def reset(self, seed):
            pass

        def led_to(self):
            return np.zeros(3)

        def step(self, direction, grip):
            raise RuntimeError("the physics came apart")

    monkeypatch.setitem(simulators.SIMULATORS, "broken", lambda task: Broken())
    score, logged = accuracy_reward(said(SHUT), {**DRAWER, "simulator": "broken"})
    assert score == 0.0 and logged["not_executed"] == 1


def test_the_pool_keeps_few_environments(monkeypatch):
    closed = []

    class Environment:
        def __init__(self, task):
            self.task, self.env = task, self

        def close(self):
            closed.append(self.task)

    monkeypatch.setitem(simulators.SIMULATORS, "toy", Environment)
    pool = Pool()
    for task in ("a", *map(str, range(simulators.KEPT - 1)), "a", "z"):
        with pool.use("toy", task) as environment:
            assert environment.task == task
    assert closed == ["0"]


def test_without_the_package_one_sentence(monkeypatch):
    monkeypatch.setattr(simulators, "need", lambda module, extra: (_ for _ in ()).throw(MissingPackage(f"[{extra}]")))
    load_metaworld.cache_clear()
    monkeypatch.setattr(manipulation_sim, "POOL", Pool())
    with pytest.raises(MissingPackage, match=r"\[sim\]"):
        accuracy_reward(said(SHUT), DRAWER)
    load_metaworld.cache_clear()


def test_metrics():
    rows = [prediction(NAME, None, DRAWER)]
    assert metrics(NAME, *rows) == {}
    row = rows[0] | {"status": "ok", "prediction": SHUT, "accuracy": 1.0}
    lost = rows[0] | {"status": "parse_fail", "prediction": None, "accuracy": 0.0}
    assert metrics(NAME, row, lost) == {"parse_failure_rate": 0.5, "moves": 2, "drawer-close_success": 0.5}


# ---- In the simulators


def test_a_plan_is_carried_out_and_seeds_reproduce(sawyer):
    score, logged = accuracy_reward(said(SHUT), DRAWER)
    assert score == 1.0 and 0 < logged["steps"] < simulators.MOST_STEPS
    ends = []
    for seed, plan in ((3, SHUT), (4, [[10, 60, 20, 0]]), (3, SHUT)):
        with POOL.use("metaworld", "drawer-close") as environment:
            execute(environment, seed, plan)
            ends.append(environment.observation.copy())
    assert np.array_equal(ends[0], ends[2]) and not np.array_equal(ends[0], ends[1])
    for plan in ([[300, 300, 300, 1]], [[-300, -300, -300, 0]] * 32, [[0, 60, 20, 0]]):
        score, logged = accuracy_reward(said(plan), DRAWER)
        assert score == 0.0 and logged["steps"] <= simulators.MOST_STEPS


def test_unknown_tasks_are_named(sawyer, fetch):
    assert len(simulators.sawyer_tasks()) == 50
    with pytest.raises(ValueError, match="Meta-World has no task 'drawer-shut'"):
        accuracy_reward(said(SHUT), {**DRAWER, "task": "drawer-shut"})
    with pytest.raises(ValueError, match="Fetch has no task 'fly'"):
        accuracy_reward(said(SHUT), {**DRAWER, "simulator": "fetch", "task": "fly"})


def test_the_plan_of_a_shipped_record_succeeds(sawyer, fetch):
    lines = (ROOT / "metadata" / "demo" / "manipulation" / "test.jsonl").read_text().splitlines()
    record = json.loads(lines[-1])
    assert accuracy_reward(said(record["plan"]), record["answer"])[0] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_experts_succeed_and_random_plans_do_not(name, sawyer, fetch):
    simulator, task = name.split("/")
    draw, (low, high) = np.random.default_rng(0), SPACE[simulator]
    experts, chances = [], []
    for seed in range(10):
        with POOL.use(simulator, task) as environment:
            plan = environment.expert_plan(seed)
        sol = {"simulator": simulator, "task": task, "seed": seed}
        experts.append(accuracy_reward(said(plan), sol)[0] if plan else 0.0)
        moves = [[*draw.uniform(low, high).round(1).tolist(), int(draw.integers(2))] for _ in range(5)]
        chances.append(accuracy_reward(said(moves), sol)[0])
    assert sum(experts) >= 9, experts
    assert sum(chances) <= 2, chances


@pytest.mark.slow
def test_a_hundred_episodes_leak_no_memory(sawyer):
    def episodes(count: int) -> int:
        for seed in range(count):
            accuracy_reward(said([[0, 70, 10, 0]]), DRAWER | {"seed": seed})
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    before = episodes(20)
    assert episodes(100) - before < 20e6


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_completions(count, monkeypatch):
    """Everything but the run itself."""
    monkeypatch.setattr(manipulation_sim, "execute", lambda environment, seed, plan: (len(plan) > 1, 5))
    monkeypatch.setitem(simulators.SIMULATORS, "toy", lambda task: None)
    draw, seen = random.Random(NAME), set()
    sol = DRAWER | {"simulator": "toy"}
    for _ in range(count):
        completion = mutated(said(SHUT), draw)
        form, (score, _) = format_reward(completion, sol), accuracy_reward(completion, sol)
        assert form in (0.0, 1.0) and score in (0.0, 1.0)
        seen.add((form, score))
    assert {(0.0, 0.0), (1.0, 1.0), (0.0, 1.0)} <= seen
