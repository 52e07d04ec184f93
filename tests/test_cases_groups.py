"""Groups of any size, order and naming, with any rows abstaining: compared with statistics worked out one by one."""

import json
import math
import random
import statistics

import pytest
from reward_cases import make_task
from trainer_cases import logged, script, settings, text_rows, text_trainer, thought_tree

from task.rewards.router import task_rewards
from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.thought_answer import thought_answer

NAN = math.nan
IDS = {
    "numbers": [3, -1, 10**9, 0, 7],
    "texts": ["b", "a", "", "a:1", "é"],
    "number-like texts": ["10", "9", "1", "01", "1.0"],
}


def by_hand(values, groups) -> list[float]:
    """(value - mean) / (sample std + 1e-4) of the value's group; 0 alone, without spread and for NaN."""
    out = []
    for value, group in zip(values, groups, strict=True):
        members = [v for v, g in zip(values, groups, strict=True) if g == group and not math.isnan(v)]
        spread = statistics.stdev(members) if len(members) > 1 else 0.0
        alone = math.isnan(value) or spread < 1e-6 * max(1.0, *map(abs, members))
        out.append(0.0 if alone else (value - statistics.fmean(members)) / (spread + 1e-4))
    return out


@pytest.mark.parametrize("ids", IDS)
def test_random_groups_equal_the_statistics_of_each(ids):
    draw = random.Random(0)
    rewards = [0.0, 1.0, 0.1, -2.5, 1e-7, 1e6, NAN]
    sizes = set()
    for _ in range(300):
        groups = draw.choices(IDS[ids][: draw.randint(1, 5)], k=draw.randint(1, 14))
        values = [draw.choice(rewards) for _ in groups]
        assert leaf_group(values, groups).tolist() == pytest.approx(by_hand(values, groups), abs=1e-9)
        sizes |= {groups.count(group) for group in groups}
    assert {1, 2, 3, 5} <= sizes


@pytest.mark.parametrize(
    ("rewards", "groups", "expected"),
    [
        ([1, 3, 5], [0, 0, 1], [-0.7070, 0.7070, 0]),
        ([5, 1, 3], ["single", "pair", "pair"], [0, -0.7070, 0.7070]),
        ([1, 0, NAN, 2], [0, 0, 0, 1], [0.7070, -0.7070, 0, 0]),
        ([1, NAN, 0, NAN], [0, 0, 1, 1], [0, 0, 0, 0]),  # one scored row of two is a group of one
        ([NAN, NAN, 1, 0], [0, 0, 1, 1], [0, 0, 0.7070, -0.7070]),
        ([1e8, 1e8 + 1], [0, 0], [0, 0]),  # below rounding of the largest value
        ([0.0, 0.0, 0.0], [0, 1, 2], [0, 0, 0]),
    ],
)
def test_unequal_groups(rewards, groups, expected):
    assert leaf_group(rewards, groups).tolist() == pytest.approx(expected, abs=1e-3)


def test_answers_of_unequal_number_below_thoughts_of_unequal_number():
    """Each level by its own ids: values 0.5, 1 and (alone) 0.25; a prompt of one thought compares nothing."""
    rewards = [1.0, 0.0, 1.0, 0.25, 0.75, 0.25]
    prompts = ["p", "p", "p", "q", "q", "q"]
    thoughts = [0, 0, 1, 2, 2, 2]
    order = [4, 0, 5, 2, 3, 1]
    for rows in (range(6), order):
        pick = [list(column[i] for i in rows) for column in (rewards, prompts, thoughts)]
        out = thought_answer(*pick)
        expected = [by_hand([0.5, 1.0], "pp")[0]] * 2 + [by_hand([0.5, 1.0], "pp")[1]] + [0.0] * 3
        assert out.thought.tolist() == pytest.approx([expected[i] for i in rows])
        answers = by_hand(rewards, prompts)
        assert out.answer.tolist() == pytest.approx([answers[i] for i in rows])


@pytest.mark.parametrize("closed", [[True] * 4, [True, True, False, False], [False] * 4])
@pytest.mark.parametrize("rewards", [[NAN] * 4, [1, NAN, NAN, NAN], [1, 0, NAN, NAN], [0.1] * 4])
def test_nothing_is_ever_not_a_number_but_an_undefined_rho(rewards, closed):
    out = thought_answer(rewards, [0] * 4, [0, 0, 1, 1], closed)
    for column in (out.thought, out.answer):
        assert all(math.isfinite(value) for value in column)
    assert not math.isinf(out.rho)


@pytest.mark.parametrize("count", [1, 0, -4])
def test_a_group_of_one_is_refused_in_plain_words(tmp_path, count):
    with pytest.raises(ValueError, match=f"num_generations={count}: an advantage compares at least 2"):
        settings(tmp_path, method="grpo", num_generations=count, max_completion_length=8)


def test_two_records_of_one_question_are_two_groups(tiny_text, tmp_path, monkeypatch):
    """Equal prompt text, other answers: one always right, the other always wrong. Grouped by text this gives +-0.94."""
    rows = text_rows(2)
    texts = [json.loads(record) for record in rows["record"]]
    same = [one | {"question": "Go.", "messages": [{"role": "user", "content": "Go."}]} for one in texts]
    rows = rows.from_list([{"prompt": "Go.", "record": json.dumps(one)} for one in same])
    tree = [[[301], [302]], [[[303], [304]], [[305], [306]]]]
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, *tree))

    def reward(record, **kwargs):
        return [float(json.loads(one)["answer"] == 1) for one in record]

    trainer = text_trainer(tiny_text, tmp_path, rows=rows, reward=reward, per_device_train_batch_size=8)
    trainer.train()
    batch = trainer._buffered_inputs[0]
    assert logged(trainer, "reward") == [0.5]
    assert batch["answer_advantages"].tolist() == [0.0] * 8
    assert batch["thought_advantages"].tolist() == [0.0] * 8


def test_metrics_of_a_window_leave_out_steps_without_a_number(tiny_text, tmp_path):
    trainer = text_trainer(tiny_text, tmp_path)
    trainer.model.train()
    trainer._metrics["train"]["some/value"] = [0.5, NAN, 0.8]
    trainer._metrics["train"]["no/value"] = [NAN]
    trainer.log({})
    assert logged(trainer, "some/value") == [pytest.approx(0.65)]
    assert logged(trainer, "no/value") == [None]


def test_a_function_that_abstains_everywhere_changes_no_total_and_no_mean(tiny_text, tmp_path, monkeypatch):
    tree = [[[301], [302]], [[[303], [304]], [[305], [306]]]]
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, *tree))

    def some(completions, **kwargs):
        return [1.0, None, 0.0, None]

    def none(completions, **kwargs):
        return [None] * 4

    trainer = text_trainer(tiny_text, tmp_path, rows=1, reward=[some, none])
    trainer.train()
    assert trainer._row_rewards(trainer._row_groups()[0]).tolist() == pytest.approx([1.0, NAN, 0.0, NAN], nan_ok=True)
    assert trainer._buffered_inputs[0]["answer_advantages"].tolist() == pytest.approx([0.7070, 0, -0.7070, 0], abs=1e-3)
    assert logged(trainer, "reward") == [0.5]
    assert logged(trainer, "rewards/none/mean") == [None]
    assert all(value is None or math.isfinite(value) for value in trainer.state.log_history[0].values())


def test_a_completion_that_its_task_fails_to_score_leaves_the_group(tiny_text, tmp_path, monkeypatch):
    """In form like its siblings, it would else stand there with the total of a wrong answer."""
    tree = [[[301], [302]], [[[303], [304]], [[305], [306]]]]
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, *tree))
    scores = iter([1.0, ZeroDivisionError, 0.0, 0.0])

    def accuracy(completion, sol, **kw):
        score = next(scores)
        if score is ZeroDivisionError:
            raise score
        return score

    task = make_task("test", accuracy=accuracy, form=lambda completion, sol, **kw: 1.0)
    trainer = text_trainer(tiny_text, tmp_path, rows=1, reward=task_rewards({"test": task}))
    trainer.train()
    rewards = trainer._row_rewards(trainer._row_groups()[0])
    assert rewards.tolist() == pytest.approx([2.0, NAN, 1.0, 1.0], nan_ok=True)
    advantages = trainer._buffered_inputs[0]["answer_advantages"]
    assert advantages.tolist() == pytest.approx([1.1547, 0, -0.5773, -0.5773], abs=1e-3)
    assert logged(trainer, "rewards/accuracy_reward/failed") == [1.0]


def test_the_rewards_see_what_was_sampled_and_nothing_of_the_prompt(tiny_text, tmp_path, monkeypatch):
    tokenizer = tiny_text[2]
    asked = "Write <think>a</think><answer>1</answer>, then the cone."
    rows = text_rows(1)
    record = json.loads(rows[0]["record"]) | {"messages": [{"role": "user", "content": asked}]}
    rows = rows.from_list([{"prompt": asked, "record": json.dumps(record)}])
    spell = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    thoughts = ["<think>b</think>", "I do not know </think>"]
    answers = [["<answer>2</answer>", " 3"], ["", "<answer>"]]
    tree = [[spell(t) for t in thoughts], [[[*spell(a), tokenizer.eos_token_id] for a in below] for below in answers]]
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, *tree))
    seen = []

    def reward(completions, **kwargs):
        seen.extend(completions)
        return [0.0] * len(completions)

    text_trainer(tiny_text, tmp_path, rows=rows, reward=reward).train()
    assert seen == [thought + answer for thought, below in zip(thoughts, answers, strict=True) for answer in below]
