"""Batches of an evaluation: seeds by content, halving where memory ends, several samples, agents, going on."""

import json

import pytest
import torch
from evaluation_cases import LetterModule, ScriptedEngine, make_task, records

from dataset.dataset_grpo import rows_from_records
from trainer.evaluation.predict import predict, predict_batches
from trainer.evaluation.summary import intervals, summarise
from trainer.policies.policy import Policy
from trainer.tree import PROMPT, Node, Tree

TASKS = {"sum": make_task()}
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
SETTINGS = {"max_new_tokens": 9, "batch_size": 8}


class DrawingEngine:
    """Samples letters from torch's default generator; more than `room` rows together do not fit in memory."""

    eos_ids = ()

    def __init__(self, room=10**9, error=FULL):
        self.room, self.error, self.sizes = room, error, []

    def grow(self, prompts, policy, prompt_ids):
        rows = len(prompts) * policy.leaves
        self.sizes.append(rows)
        if rows > self.room:
            raise self.error
        trees = [Tree(name) for name in prompt_ids]
        for tree in trees:
            for _ in range(policy.leaves):
                tree.add(Node(PROMPT, "segment", (97 + torch.randint(26, (4,))).tolist()))
        return trees


def found(engine, n=20, **changes):
    rows = rows_from_records(records(n), TASKS)
    return predict(engine, LetterModule(), rows, TASKS, **SETTINGS | {"seed": 1} | changes)


def texts(predictions):
    return [p["completion"] for p in predictions]


def test_what_is_drawn_depends_on_seed_and_batch_and_not_on_what_came_before():
    torch.manual_seed(0)
    once = found(DrawingEngine())
    torch.rand(7)
    assert found(DrawingEngine()) == once
    assert texts(found(DrawingEngine(), seed=2)) != texts(once)
    assert len(set(texts(once))) == 20


@pytest.mark.parametrize("samples", [1, 3])
def test_a_run_that_goes_on_gives_the_predictions_of_one_in_one_piece(samples):
    whole = found(DrawingEngine(), num_samples=samples)
    for count in (1, 7, 13, 19):
        done = {p["id"] for p in whole[::2][:count]} | {p["id"] for p in whole[:count]}
        engine = DrawingEngine()
        rest = found(engine, num_samples=samples, done=done)
        assert rest == [p for p in whole if p["id"] not in done]
    finished = DrawingEngine()
    assert found(finished, num_samples=samples, done={p["id"] for p in whole}) == []
    assert finished.sizes == []


def test_media_of_finished_windows_are_not_read_again(tmp_path):
    data = [record | {"image": str(tmp_path / "gone.png")} if i < 3 else record for i, record in enumerate(records(9))]
    rows = rows_from_records(data, TASKS, on_bad_media="skip")
    settings = {"max_new_tokens": 9, "batch_size": 1, "done": {f"r{i}" for i in range(8)}}
    rest = predict(DrawingEngine(), LetterModule(), rows, TASKS, **settings)  # windows of 8
    assert [p["id"] for p in rest] == ["r8"]


def test_memory_that_ends_halves_the_batch_and_nothing_is_lost():
    engine = DrawingEngine(room=3)
    halved = found(engine, n=8)
    assert engine.sizes == [8, 4, 2, 2, 4, 2, 2]
    assert [p["id"] for p in halved] == [f"r{i}" for i in range(8)]
    assert {p["status"] for p in halved} <= {"ok", "parse_fail"}
    assert found(DrawingEngine(room=3), n=8) == halved


def test_the_samples_of_one_record_are_halved_too_and_differ():
    engine = DrawingEngine(room=2)
    halved = found(engine, n=1, num_samples=8)
    assert engine.sizes == [8, 4, 2, 2, 4, 2, 2]
    assert len({sample["completion"] for sample in halved[0]["samples"]}) == 8


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        MemoryError(),
    ],
)
def test_what_does_not_fit_alone_is_counted_and_in_no_mean(error, capsys):
    predictions = found(DrawingEngine(room=0, error=error), n=2)
    assert [p["status"] for p in predictions] == ["oom", "oom"]
    assert "do not fit in memory" in predictions[0]["error"]
    assert summarise(predictions, TASKS)["sum"] == {
        "n": 2, "n_parse_fail": 0, "n_length": 0, "n_load_error": 0, "n_oom": 2, "n_tool_error": 0,
    }  # fmt: skip
    assert intervals(predictions, TASKS, summarise(predictions, TASKS)) == {"sum": {}}
    assert capsys.readouterr().err.count("ran out of memory") == 1


def test_other_errors_are_not_taken_for_memory():
    with pytest.raises(RuntimeError, match="shapes"):
        found(DrawingEngine(room=0, error=RuntimeError("shapes cannot be multiplied")))


def test_several_samples_a_record():
    task = make_task(
        accuracy_reward=lambda completion, sol, **kw: float(completion[0] < "n"),
        compute_metrics=lambda predictions, **kw: {
            "early": sum(p["completion"] < "n" for p in predictions) / len(predictions)
        },
    )
    rows = rows_from_records(records(6), {"sum": task})
    engine = DrawingEngine()
    predictions = predict(engine, LetterModule(), rows, {"sum": task}, num_samples=4, seed=1, **SETTINGS)
    assert engine.sizes == [8, 8, 8]  # completions together, not records
    assert [len(p["samples"]) for p in predictions] == [4] * 6
    first = predictions[0]
    assert first["accuracy"] == sum(s["accuracy"] for s in first["samples"]) / 4
    assert (first["completion"], first["tokens"]) == (first["samples"][0]["completion"], 16)
    metrics = summarise(predictions, {"sum": task})["sum"]
    assert (
        metrics["mean@4"] == metrics["accuracy"] == pytest.approx(metrics["early"]) == pytest.approx(metrics["pass@1"])
    )
    assert metrics["pass@1"] < metrics["pass@2"] < metrics["pass@4"]
    assert "pass@3" not in metrics
    spread = intervals(predictions, {"sum": task}, summarise(predictions, {"sum": task}))["sum"]
    for name in ("accuracy", "pass@1", "pass@2", "mean@4", "early"):
        assert spread[name][0] <= metrics[name] <= spread[name][1]
    assert summarise(predictions, {"sum": task}, pass_threshold=0.0)["sum"]["pass@1"] == 1.0


class Agent(Policy):
    """Writes the record's question backwards as an answer after an observation; the tool fails on r1."""

    leaves = 1

    def __init__(self, task, given):
        self.given = [record["id"] for record in given]

    def report(self, tree, leaf):
        return {"turns": 2, "tool_calls": len(tree.nodes)}


class AgentEngine(DrawingEngine):
    def __init__(self):
        super().__init__()
        self.batches = []

    def grow(self, prompts, policy, prompt_ids):
        self.batches.append((type(policy).__name__, prompt_ids))
        if not isinstance(policy, Agent):
            return super().grow(prompts, policy, prompt_ids)
        assert policy.given == prompt_ids
        trees = []
        for name in prompt_ids:
            tree = Tree(name)
            step = tree.add(Node(PROMPT, "step", [97]))
            failed = name == "r1"
            extra = {"error": "timeout"} if failed else None
            seen = tree.add(
                Node(step, "observation", [98], sampled=False, status="failed" if failed else "ok", extra=extra)
            )
            if not failed:
                tree.add(Node(seen, "step", [99, 99]))
            trees.append(tree)
        return trees


def agent_tasks():
    return {"sum": make_task(make_environment=lambda: None), "other": make_task("other")}


def agent_rows(tasks):
    data = [record | {"question_type": "other"} if i % 2 == 0 else record for i, record in enumerate(records(6))]
    return rows_from_records(data, tasks)


@pytest.mark.parametrize("samples", [1, 2])
def test_rows_of_agent_tasks_are_grown_by_their_own_policy(samples):
    tasks, engine = agent_tasks(), AgentEngine()
    predictions = predict(
        engine, LetterModule(), agent_rows(tasks), tasks, policy_of=Agent, num_samples=samples, seed=1, **SETTINGS
    )
    assert [p["id"] for p in predictions] == [f"r{i}" for i in range(6)]
    assert sorted(kind for kind, _ in engine.batches) == ["Agent", "ChainPolicy"]
    assert sorted(next(ids for kind, ids in engine.batches if kind == "Agent")) == sorted(["r1", "r3", "r5"] * samples)
    fine = predictions[3]
    assert (fine["completion"], fine["tokens"], fine["turns"]) == ("abcc", 3 * samples, 2)
    broken = predictions[1]
    assert (broken["status"], broken["error"], broken["accuracy"]) == ("tool_error", "timeout", None)
    metrics = summarise(predictions, tasks)["sum"]
    assert (metrics["n"], metrics["n_tool_error"], metrics["accuracy"]) == (3, samples, 0.0)


def test_without_a_policy_of_their_own_agent_rows_are_completed():
    tasks, engine = agent_tasks(), AgentEngine()
    predict(engine, LetterModule(), agent_rows(tasks), tasks, seed=1, **SETTINGS)
    assert {kind for kind, _ in engine.batches} == {"ChainPolicy"}


def test_a_metric_that_needs_many_predictions_costs_no_interval_of_the_others():
    task = make_task(compute_metrics=lambda predictions, **kw: {"spread": 1 / (len(predictions) - 1)})
    rows = rows_from_records(records(4), {"sum": task})
    predictions = predict(ScriptedEngine({"r0": "0"}), LetterModule(), rows, {"sum": task}, **SETTINGS)
    metrics = summarise(predictions, {"sum": task})
    assert set(intervals(predictions, {"sum": task}, metrics)["sum"]) == {"accuracy", "format"}


def test_counts_and_ratios_have_no_interval():
    def compute_metrics(predictions, **kw):
        right = sum(p["accuracy"] for p in predictions)
        return {"right": right, "share": right / len(predictions), "ratio": (right + 1) / (len(predictions) + 1)}

    task = make_task(compute_metrics=compute_metrics)
    rows = rows_from_records(records(4), {"sum": task})
    predictions = predict(ScriptedEngine({"r0": "0"}), LetterModule(), rows, {"sum": task}, **SETTINGS)
    assert set(intervals(predictions, {"sum": task}, summarise(predictions, {"sum": task}))["sum"]) == {
        "accuracy", "format", "share",
    }  # fmt: skip


def test_a_prediction_survives_a_line_of_text():
    predictions = found(DrawingEngine(), n=4, num_samples=2)
    again = [json.loads(json.dumps(p)) for p in predictions]
    assert summarise(again, TASKS) == summarise(predictions, TASKS)


def test_batches_are_yielded_before_the_next_is_grown():
    engine = DrawingEngine()
    rows = rows_from_records(records(20), TASKS)
    batches = predict_batches(engine, LetterModule(), rows, TASKS, seed=1, **SETTINGS)
    for count, _ in enumerate(batches, start=1):
        assert len(engine.sizes) == count
    assert engine.sizes == [8, 8, 4]
