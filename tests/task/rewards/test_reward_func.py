"""The reward router: each completion meets its own task, and gives one number or None, whatever a reward does."""

import json
import subprocess
import sys
from collections import defaultdict

import pytest
from paths import ROOT
from reward_cases import make_task, row, score

from task.rewards.own_rewards import CheckedReward
from task.rewards.router import TaskReward, task_rewards


def test_each_completion_meets_the_rewards_of_its_own_task():
    tasks = {
        "words": make_task(),
        "sums": make_task("sums", accuracy=lambda completion, sol, **kw: 1.0 if float(completion) == sol else 0.25),
    }
    form, accuracy = task_rewards(tasks)
    assert (form.__name__, accuracy.__name__) == ("format_reward", "accuracy_reward")
    records = [row(), row("sums", 7), row("sums", 8), row()]
    call = {"prompts": ["p"] * 4, "completion_ids": [[1]] * 4, "trainer_state": None, "record": records}
    assert accuracy(completions=["yes", "7", "7", "no"], **call) == [1.0, 1.0, 0.25, 0.0]
    assert form(completions=["yes", "", "7", "no"], **call) == [1.0, 0.0, 1.0, 1.0]


def test_an_unknown_question_type_is_named():
    with pytest.raises(ValueError, match="no task has question_type 'wrods'"):
        TaskReward("accuracy", {"words": make_task()})(completions=["yes"], record=[row("wrods")])


def test_message_lists_count_by_their_last_content():
    chat = [{"role": "user", "content": "no"}, {"role": "assistant", "content": "yes"}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "yes"}]}]
    assert score(make_task(), [chat, parts, []]) == [1.0, 1.0, 0.0]


def test_sol_arrives_in_the_tasks_frame_with_every_keyword():
    seen = []

    def accuracy(completion, sol, **kw):
        seen.append((sol, kw))
        return 1.0

    def process(answer, size_from, size_to):
        return [answer[0] * size_to[0] / size_from[0], answer[1] * size_to[1] / size_from[1]]

    task = make_task("points", accuracy, process=process, frame="processed", thought_end="</analysis>")
    record = row("points", [100, 50], extra={"note": "kept"})
    score(
        task,
        ["a", "b"],
        record=[record, record],
        image_sizes=[[(200, 100), (9, 9)], []],
        processed_sizes=[[(112, 56), (28, 28)], []],
    )
    sol, keywords = seen[0]
    assert sol == [56.0, 28.0]
    assert keywords == {
        "id": "r1",
        "question_type": "points",
        "image_size": (200, 100),
        "processed_size": (112, 56),
        "record": json.loads(record),
        "thought_end": "</analysis>",
    }
    sol, keywords = seen[1]
    assert sol == [100, 50], "without a picture there is nothing to map"
    assert keywords["image_size"] is keywords["processed_size"] is None


def test_a_record_without_an_answer_gives_sol_none():
    task = make_task(accuracy=lambda completion, sol, **kw: 1.0 if sol is None else 0.0)
    records = [json.dumps({"id": 1, "question_type": "words"}), row(answer=None)]
    assert score(task, ["a", "b"], record=records) == [1.0, 1.0]


def test_one_unparsable_answer_does_not_shift_the_rest():
    def accuracy(completion, sol, **kw):
        return float(json.loads(completion) == 3)

    completions = ["3", "I don't know.", "", "3", "4"]
    assert score(make_task(accuracy=accuracy), completions) == [1.0, None, None, 1.0, 0.0]


def test_failures_are_counted_and_the_first_is_shown(capsys):
    def accuracy(completion, sol, **kw):
        return [1.0, 0.5][len(completion)]

    metrics = {}
    reward = TaskReward("accuracy", {"words": make_task(accuracy=accuracy)})
    for _ in range(2):
        values = reward(completions=["", "abc", "a"], record=[row()] * 3, log_metric=metrics.__setitem__)
        assert values == [1.0, None, 0.5]
    assert metrics["rewards/accuracy_reward/failed"] == 1.0
    shown = capsys.readouterr().err
    assert shown.count("Traceback") == 1
    assert "task/words.py: accuracy_reward failed on record 'r1'" in shown
    assert "IndexError" in shown


def test_a_failure_can_be_made_to_stop_the_run():
    task = make_task(accuracy=lambda completion, sol, **kw: 1 / 0)
    with pytest.raises(ValueError, match=r"task/words\.py: accuracy_reward failed on record 'r1' \(ZeroDivisionError"):
        score(task, ["yes"], on_reward_error="raise")
    with pytest.raises(ValueError, match="on_reward_error 'ignore': choose one of abstain, raise"):
        score(task, ["yes"], on_reward_error="ignore")


def test_none_and_numbers_that_are_not_finite_abstain():
    values = iter([1.0, float("nan"), float("inf"), None, True, -float("inf"), 0, -(10**400)])
    metrics = {}
    task = make_task(accuracy=lambda completion, sol, **kw: (next(values), {"digits": 10**400}))
    scores = score(task, ["x"] * 8, log_metric=metrics.__setitem__)
    assert scores == [1.0, None, None, None, 1.0, None, 0.0, None]
    assert metrics["rewards/accuracy_reward/non_finite"] == 4.0
    assert metrics["rewards/accuracy_reward/failed"] == 0.0
    assert "words/digits" not in metrics
    assert score(make_task(form=lambda completion, sol, **kw: 10**400), ["x"], kind="format") == [None]


def bad_results():
    import numpy as np
    import torch

    return ["1.0", torch.ones(5, 1), torch.tensor(1.0), [1.0], (1.0, 0.5), np.ones(1), {"score": 1.0}, (1.0, {}, 3)]


@pytest.mark.parametrize("result", bad_results(), ids=lambda value: type(value).__name__)
def test_a_broken_contract_names_the_task_file(result):
    task = make_task(accuracy=lambda completion, sol, **kw: result)
    with pytest.raises(TypeError, match=r"task/words\.py: accuracy_reward returned a .* return a float"):
        score(task, ["yes"])


@pytest.mark.parametrize("result", [0.5, 2, (1.0, {})], ids=repr)
def test_a_format_reward_is_zero_or_one(result):
    task = make_task(form=lambda completion, sol, **kw: result)
    with pytest.raises(TypeError, match=r"task/words\.py: format_reward returned .* return 0\.0, 1\.0 or None"):
        score(task, ["yes"], kind="format")


def test_extras_become_metrics_and_whole_columns():
    def accuracy(completion, sol, **kw):
        return (1.0, {"distance": float(completion), "note": "far"}) if completion else 0.0

    metrics, columns = defaultdict(list), {}
    reward = TaskReward("accuracy", {"words": make_task(accuracy=accuracy)})
    hooks = {"log_metric": lambda name, value: metrics[name].append(value), "log_extra": columns.__setitem__}
    assert reward(completions=["2", "", "4", "nan"], record=[row()] * 4, **hooks) == [1.0, 0.0, 1.0, 1.0]
    assert metrics["words/distance"] == [2.0, 4.0]
    assert "words/note" not in metrics
    assert columns["words/distance"][:3] == [2.0, None, 4.0]
    assert columns["words/note"] == ["far", None, "far", "far"]
    columns.clear()
    reward(completions=["", ""], record=[row()] * 2, **hooks)
    assert columns == {"words/distance": [None, None], "words/note": [None, None]}


def test_rollouts_that_failed_get_none_and_meet_no_reward():
    task = make_task(accuracy=lambda completion, sol, **kw: float(completion))
    assert score(task, ["1", "", "1"], failed=[False, True, False], on_reward_error="raise") == [1.0, None, 1.0]


def test_columns_of_other_lengths_are_our_own_fault():
    with pytest.raises(AssertionError):
        score(make_task(), ["a", "b"], record=[row()])


@pytest.mark.parametrize("values", [[1.0] * 4, [1.0] * 6, 1.0, ["1"] * 5, None], ids=repr)
def test_a_users_own_reward_is_held_to_one_number_a_completion(values):
    def my_reward(prompts, completions, **kw):
        return values

    with pytest.raises(TypeError, match=r"reward function my_reward returned a .* for 5 completions"):
        CheckedReward(my_reward)(prompts=["p"] * 5, completions=["c"] * 5)


def test_a_users_own_reward_passes_through():
    def my_reward(prompts, completions, length, **kw):
        return [length, None, float("nan"), 10**400]

    checked = CheckedReward(my_reward)
    assert checked.__name__ == "my_reward"
    assert checked(prompts=["p"] * 4, completions=["c"] * 4, length=7) == [7.0, None, None, None]


def test_rewards_need_no_torch():
    code = "import sys; import task.rewards.router; assert not {'torch', 'transformers', 'trl'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_extras_that_are_no_numbers_are_named_once(capsys):
    extras = iter([{"note": "far"}, {"note": "near", "gap": None}, {"gap": 1.5}])
    task = make_task(accuracy=lambda completion, sol, **kw: (1.0, next(extras)))
    metrics = defaultdict(list)
    score(task, ["a", "b", "c"], log_metric=lambda name, value: metrics[name].append(value))
    said = capsys.readouterr().err
    assert said.count("no number") == 1 and metrics["words/gap"] == [1.5]
    assert "task/words.py: accuracy_reward gave a str of 3 ('far') as 'note', which is no number" in said
