"""From rewards to advantages in a run: groups by record, functions that abstain, completions that cannot be scored."""

import json
import math

import pytest
from reward_cases import make_task
from trainer_cases import logged, script, text_rows, text_trainer, thought_tree

from task.rewards.router import task_rewards

NAN = math.nan


def test_two_records_of_one_question_are_two_groups(tiny_text, tmp_path, monkeypatch):
    """Equal prompt text, other answers: one always right, the other always wrong. Grouped by text this gives +-0.94."""
    rows = text_rows(2)
    texts = [json.loads(record) for record in rows["record"]]
    same = [one | {"question": "Go.", "messages": [{"role": "user", "content": "Go."}]} for one in texts]
    rows = rows.from_list([{"prompt": "Go.", "record": json.dumps(one)} for one in same])
    tree = [[[301], [302]], [[[303], [304]], [[305], [306]]]]
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, *tree))

    def reward(record, **kwargs):
        return [float(one["answer"] == 1) for one in record]

    trainer = text_trainer(tiny_text, tmp_path, rows=rows, reward=reward, per_device_train_batch_size=8)
    trainer.train()
    batch = trainer._buffered_inputs[0]
    assert logged(trainer, "reward") == [0.5]
    assert batch["answer_advantages"].tolist() == [0.0] * 8
    assert batch["thought_advantages"].tolist() == [0.0] * 8


def test_a_function_that_abstains_everywhere_changes_no_total_and_no_mean(tiny_text, tmp_path, monkeypatch):
    tree = [[[301], [302]], [[[303], [304]], [[305], [306]]]]
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, *tree))

    def some(completions, **kwargs):
        return [1.0, None, 0.0, None]

    def none(completions, **kwargs):
        return [None] * 4

    trainer = text_trainer(tiny_text, tmp_path, rows=1, reward=[some, none])
    trainer.train()
    assert trainer._all_rows().rewards.tolist() == pytest.approx([1.0, NAN, 0.0, NAN], nan_ok=True)
    assert trainer._buffered_inputs[0]["answer_advantages"].tolist() == pytest.approx([0.7070, 0, -0.7070, 0], abs=1e-3)
    assert logged(trainer, "reward") == [0.5]
    assert logged(trainer, "rewards/none/mean") == []
    assert all(math.isfinite(value) for value in trainer.state.log_history[0].values())


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
    rewards = trainer._all_rows().rewards
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
