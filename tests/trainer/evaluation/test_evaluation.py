"""trainer/evaluation/predict.py and scripts/eval/eval.py: order, ids, statuses, frames, totals, and what is refused."""

from dataclasses import replace

import pytest
from evaluation_cases import LetterModule, ScriptedEngine, make_task, records
from PIL import Image

from dataset.dataset_grpo import rows_from_records
from dataset.media import MediaError
from task.task_loader import load_tasks
from trainer.evaluation.predict import predict, predict_batches
from trainer.evaluation.summary import summarise


class ScaledModule(LetterModule):
    """The processor makes every picture 28 x 56 pixels, or what it is told."""

    def __init__(self, size=(28, 56)):
        self.size = size

    def encode(self, messages, images=(), videos=()):
        encoded = super().encode(messages, images, videos)
        encoded.processed_sizes = [self.size for _ in images]
        return encoded


SETTINGS = {"max_new_tokens": 9, "batch_size": 2}


def test_order_is_the_inputs_though_batches_go_by_length():
    tasks = {"sum": make_task()}
    engine = ScriptedEngine({f"r{i}": str(i) for i in range(20)})
    seen = []
    rows = rows_from_records(records(20), tasks)
    found = predict(engine, LetterModule(), rows, tasks, progress=lambda *a: seen.append(a), **SETTINGS)
    assert [p["id"] for p in found] == [f"r{i}" for i in range(20)]
    assert all(p["accuracy"] == 1.0 and p["status"] == "ok" for p in found)
    first_window = [length for batch in engine.batches[:8] for length in batch]
    assert first_window == sorted(first_window)
    assert (sum(items for items, _ in seen), sum(tokens for _, tokens in seen)) == (20, 30)


def test_batches_come_as_they_are_scored_with_their_places():
    tasks = {"sum": make_task()}
    engine = ScriptedEngine({})
    batches = predict_batches(engine, LetterModule(), rows_from_records(records(20), tasks), tasks, **SETTINGS)
    first = next(batches)
    assert (len(first), len(engine.batches)) == (2, 1)
    assert all(item["id"] == f"r{place}" for place, item in first.items())
    assert sorted(place for batch in batches for place in batch) == sorted(set(range(20)) - set(first))


def test_statuses_and_totals(tmp_path):
    tasks = {"sum": make_task(compute_metrics=lambda predictions, **kw: {"seen": float(len(predictions))})}
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    data = records(4)
    data[2] |= {"image": str(broken)}
    engine = ScriptedEngine({"r0": "0", "r1": "x", "r3": "333333333333"})
    rows = rows_from_records(data, tasks)
    with pytest.raises(MediaError, match="'r2'"):
        predict(engine, LetterModule(), rows, tasks, **SETTINGS)
    found = predict(engine, LetterModule(), rows, tasks, on_bad_media="skip", **SETTINGS)
    assert [p["status"] for p in found] == ["ok", "parse_fail", "load_error", "length"]
    assert "broken.png" in found[2]["error"]
    assert (found[2]["format"], found[2]["completion"]) == (None, None)
    metrics = summarise(found, tasks)["sum"]
    assert metrics == {
        "seen": 3.0,
        "accuracy": pytest.approx(1 / 3),
        "format": pytest.approx(2 / 3),
        "n": 4,
        "n_parse_fail": 1,
        "n_length": 1,
        "n_load_error": 1,
        "n_oom": 0,
        "n_tool_error": 0,
    }


def test_totals_are_over_unique_ids():
    tasks = {"sum": make_task()}
    engine = ScriptedEngine({"r0": "0", "r1": "1"})
    found = predict(engine, LetterModule(), rows_from_records(records(10), tasks), tasks, **SETTINGS)
    assert summarise(found, tasks)["sum"]["accuracy"] == pytest.approx(0.2)
    with pytest.raises(AssertionError, match="the same id"):  # padding to 12 rows would have given 0.333
        summarise(found + found[:2], tasks)


def test_task_types_are_grouped_and_one_without_metrics_gets_means():
    tasks = {"sum": make_task(), "other": make_task("other", accuracy_reward=lambda completion, sol, **kw: None)}
    rows = rows_from_records([*records(2), records(3)[2] | {"question_type": "other"}], tasks)
    found = predict(ScriptedEngine({"r0": "0"}), LetterModule(), rows, tasks, **SETTINGS)
    result = summarise(found, tasks)
    assert (result["sum"]["accuracy"], result["sum"]["n"]) == (0.5, 2)
    assert "accuracy" not in result["other"]
    assert result["other"]["format"] == 1.0


def test_rewards_see_the_answer_in_the_tasks_frame(tmp_path):
    Image.new("RGB", (80, 40)).save(tmp_path / "a.png")
    seen = {}

    def accuracy_reward(completion, sol, **kw):
        seen.update(kw, sol=sol)
        return 0.5

    def process_answer(answer, size_from, size_to):
        return [answer[0] * size_to[0] / size_from[0], answer[1] * size_to[1] / size_from[1]]

    tasks = {"sum": make_task(frame="processed", process_answer=process_answer, accuracy_reward=accuracy_reward)}
    tasks = {"sum": replace(tasks["sum"], thought_end="</a>")}
    data = [{"id": "a", "question": "q", "question_type": "sum", "answer": [8.0, 4.0], "image": "a.png", "note": 1}]
    rows = rows_from_records(data, tasks, image_root=tmp_path)
    (found,) = predict(ScriptedEngine({}), LetterModule(), rows, tasks, **SETTINGS)
    assert (seen["sol"], seen["image_size"], seen["processed_size"]) == ([4.0, 2.0], (80, 40), (40, 20))
    assert (seen["thought_end"], seen["id"], seen["question_type"]) == ("</a>", "a", "sum")
    assert seen["record"]["extra"] == {"note": 1}
    assert (found["answer"], found["sol"], found["processed_size"]) == ([8.0, 4.0], [4.0, 2.0], (40, 20))


@pytest.mark.parametrize("size", [(28, 56), (112, 56)])
def test_the_pixel_budget_changes_no_score_of_the_same_path(tmp_path, size):
    Image.new("RGB", (80, 40)).save(tmp_path / "a.png")
    tasks = load_tasks()
    data = {"id": "a", "question": "q", "question_type": "trajectory-sharerobot", "image": "a.png"}
    rows = rows_from_records([data | {"answer": [[0.0, 0.0], [40.0, 20.0]]}], tasks, image_root=tmp_path)
    path = [[0, 0], [size[0] // 2, size[1] // 2]]
    engine = ScriptedEngine({"a": f"<think></think><answer>{path}</answer>"}, limit=99)
    found = predict(engine, ScaledModule(size), rows, tasks, **SETTINGS)
    metrics = summarise(found, tasks)["trajectory-sharerobot"]
    assert (metrics["accuracy"], metrics["format"]) == (1.0, 1.0)
    assert metrics["dfd_px"] == pytest.approx(0.0)
    assert found[0]["sol"] == path


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (lambda completion, sol, **kw: 1 / 0, "accuracy_reward fails on record 'r0'"),
        (lambda completion, sol, **kw: float("nan"), "accuracy_reward gave nan on record 'r0'"),
        (lambda completion, sol, **kw: "1", "accuracy_reward gave '1' on record 'r0'"),
    ],
)
def test_a_faulty_task_is_named(reward, words):
    tasks = {"sum": make_task(accuracy_reward=reward)}
    with pytest.raises(ValueError, match=words):
        predict(ScriptedEngine({}), LetterModule(), rows_from_records(records(1), tasks), tasks, **SETTINGS)


def test_a_metric_that_fails_names_the_task():
    tasks = {"sum": make_task(compute_metrics=lambda predictions, **kw: 1 / 0)}
    found = predict(ScriptedEngine({}), LetterModule(), rows_from_records(records(1), tasks), tasks, **SETTINGS)
    with pytest.raises(ValueError, match=r"sum\.py: compute_metrics fails"):
        summarise(found, tasks)
