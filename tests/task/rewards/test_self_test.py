"""Rewards prove themselves at start: a broken one stops the run, a sound one says what it scores."""

import sys
from dataclasses import replace

import pytest
from task_files import write

from dataset.prompts import render_question
from task.rewards.self_test import check_rewards, run_self_test
from task.runners.optional import MissingPackage, need
from task.task_loader import load_tasks

TEST = """
SELF_TEST = {
    "record": {"answer": "7", "hint": "odd"},
    "right": "<think>a</think><answer>7</answer>",
    "wrong": "<think>a</think><answer>8</answer>",
}
"""
SOUND = 'return float(f"<answer>{sol}</answer>" in completion and kw["record"]["extra"]["hint"] == "odd")'


def task_of(folder, accuracy: str, test: str = TEST):
    path = write(folder, "count.py", ("return 0.5", accuracy))
    path.write_text(path.read_text() + test)
    return load_tasks(folder)["count"]


@pytest.mark.parametrize("closing", ["[/REASONING]", "END OF THOUGHT"])
def test_every_shipped_task_scores_its_examples_whatever_ends_a_thought(closing, monkeypatch):
    async def asked(judge, messages):
        return f"GRADE: {10 * ('<answer>Paris</answer>' in messages[1]['content'])}"

    monkeypatch.setenv("JUDGE_URL", "http://localhost/v1")
    monkeypatch.setenv("JUDGE_MODEL", "scripted")
    monkeypatch.setattr("task.rewards.llm_judge.LLMJudge.ask", asked)
    for task in load_tasks(thought_end=closing).values():
        try:
            scores = run_self_test(task)
        except MissingPackage:
            continue
        assert scores is None or scores[0] > scores[1], task.name
        prompt = render_question(task, "q")
        assert closing in prompt and "</think>" not in prompt, task.name


def test_a_sound_reward_scores_its_examples(tmp_path):
    task = task_of(tmp_path, SOUND)
    assert run_self_test(task) == (1.0, 0.0)
    check_rewards([task])


@pytest.mark.parametrize(
    ("accuracy", "values"),
    [
        ("return 1.0", r"\[1.0, 1.0\]"),
        ("return 0.0", r"\[0.0, 0.0\]"),
        ("return None", r"\[None, None\]"),
        ("return 0.5 * float('7' in completion)", r"\[0.5, 0.0\]"),
    ],
)
def test_a_broken_reward_stops_the_run(tmp_path, accuracy, values):
    with pytest.raises(ValueError, match=rf"count.py: the rewards fail their SELF_TEST.*{values}"):
        check_rewards([task_of(tmp_path, accuracy)])


def test_a_reward_that_raises_is_named(tmp_path):
    """Such as a verifier whose time limit works on the main thread only."""
    with pytest.raises(ValueError, match=r"count.py:17: accuracy_reward failed.*main thread"):
        check_rewards([task_of(tmp_path, 'raise ValueError("signal only works in main thread")')])


def test_a_missing_package_is_told_apart(tmp_path):
    code = 'from task.runners.optional import need; need("no_such_package", "sim"); return 1.0'
    with pytest.raises(MissingPackage, match=r"count.py: no_such_package is not installed.*'.\[sim\]'"):
        check_rewards([task_of(tmp_path, code)])
    need("json", "sim")


def test_the_tags_are_the_runs_own(tmp_path):
    task = task_of(tmp_path, 'return float("<plan>a</plan>" in completion and "7" in completion)')
    assert run_self_test(replace(task, thought_end="</plan>")) == (1.0, 0.0)


def test_tasks_without_examples_are_let_pass(tmp_path):
    assert run_self_test(task_of(tmp_path, "return 0.5", "")) is None


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("SELF_TEST = 5", "SELF_TEST has int where record, right, wrong are needed"),
        ('SELF_TEST = {"record": {}, "right": "a"}', r"SELF_TEST has \['record', 'right'\]"),
        ('SELF_TEST = {"record": {}, "right": "a", "wrong": "b"}', "SELF_TEST does not have the right contents"),
        (
            'SELF_TEST = {"record": {"answer": 1}, "right": 1, "wrong": "b"}',
            "SELF_TEST does not have the right contents",
        ),
    ],
)
def test_a_faulty_self_test_is_refused_by_the_loader(tmp_path, test, message):
    with pytest.raises(ValueError, match=message):
        task_of(tmp_path, SOUND, test)


def test_every_shipped_task_has_examples():
    for task in load_tasks().values():
        assert task.self_test is not None, task.path


def test_training_stops_before_the_model_is_loaded(tmp_path, monkeypatch, capsys):
    """train.py runs the self-tests of the tasks in its data, and ends with the sentence and status 2."""
    import train
    from task import trajectory_sharerobot

    monkeypatch.setattr(trajectory_sharerobot, "REWARD_SCALE", -1.0)
    monkeypatch.setattr(train, "load_policy", lambda *_, **__: pytest.fail("the model was loaded"))
    manifest = "metadata/demo/trajectory_train.yaml"
    flags = ["--config", "config/recipes/grpo_ma_demo.yaml", "--dataset_name", manifest, "--output_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["train.py", *flags])
    with pytest.raises(SystemExit) as stopped:
        train.main()
    assert stopped.value.code == 2
    assert "trajectory_sharerobot.py: the rewards fail their SELF_TEST" in capsys.readouterr().err


@pytest.mark.parametrize(("parsing", "said"), [("None", "in right or wrong"), ("'7'", None), ("kw['id']", None)])
def test_the_sentence_says_where_parse_answer_finds_nothing(tmp_path, parsing, said):
    test = f"{TEST}\ndef parse_answer(completion, **kw):\n    return {parsing}\n"
    with pytest.raises(ValueError, match="fail their SELF_TEST") as told:
        run_self_test(task_of(tmp_path, "return 0.0", test))
    assert (f"(parse_answer finds no answer {said})" in str(told.value)) == (said is not None)
    assert ("parse_answer" in str(told.value)) == (said is not None)
