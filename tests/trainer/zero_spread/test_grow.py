"""Prompts whose rewards do not differ get further answers; all rewards count, and a uniform draw of the rows trains."""

import numpy as np
import pytest
from trainer_cases import logged, run, script, text_trainer, thought_tree

from trainer.advantages.thought_answer import thought_answer
from trainer.tree import Node

TREE = [[[301], [302]], [[[303], [304]], [[305], [306]]]]
GROW = {"on_zero_spread": "grow", "gradient_accumulation_steps": 2, "grow_budget": 0.25}  # 2 of 8 leaves


@pytest.fixture
def scripted(monkeypatch):
    """Every prompt grows the same tree; further answers are single tokens from 310 on."""
    from trainer.engines import generating

    def tree(prompt_id, policy):
        thoughts, answers = TREE
        return thought_tree(prompt_id, thoughts, [below[: policy.answer.count] for below in answers])

    script(monkeypatch, tree)
    tokens = iter(range(310, 400))

    def extend(self, branches):
        for tree, branch in branches:
            for _ in range(branch.segment.count):
                tree.add(Node(branch.node, "answer", [next(tokens)], logprobs=[-1.0]))

    generating.TransformersEngine.extend = extend


def reward_of(flat, calls, further=1.0):
    """0 for the answers that were grown first at the prompts in `flat`, `further` for the ones added later."""

    def reward(completions, record, completion_ids, **kwargs):
        calls.append(len(completions))
        named = [one["answer"] for one in record]
        grown_first = [ids[-1] < 310 for ids in completion_ids]
        return [
            (0.0 if first else further) if name in flat else float(ids[-1] % 2)
            for name, first, ids in zip(named, grown_first, completion_ids, strict=True)
        ]

    return reward


def test_a_rescued_prompt_trains_on_its_own_number_of_rows_and_others_lose_nothing(tiny_text, tmp_path, scripted):
    calls = []
    trainer = text_trainer(tiny_text, tmp_path, rows=4, reward=reward_of({0}, calls), **GROW)
    run(trainer)
    assert calls == [8, 2], "every row is scored once"
    training = trainer.generation.training
    assert len(training.scored.row_tree) == 10
    assert len(training.rows) == 8
    assert training.rows[4:] == [6, 7, 8, 9], "a prompt with signal trains on all of its rows"
    assert training.weights == [6 / 4] * 4 + [1.0] * 4
    assert trainer.generation.rewards.flatten().tolist()[:6] == [0.0] * 4 + [1.0] * 2
    assert logged(trainer, "grow/share") == [0.5]
    assert logged(trainer, "grow/answers") == [1.0]
    assert logged(trainer, "grow/rescued") == [1.0]
    assert logged(trainer, "answer/zero_spread") == [0.0]
    assert logged(trainer, "tokens/generated") == [7.0]  # 6 tokens of a tree and 2 of the further answers, over 2


def test_advantages_are_those_of_all_rewards_times_the_weight(tiny_text, tmp_path, scripted):
    trainer = text_trainer(tiny_text, tmp_path, rows=4, reward=reward_of({0}, []), **GROW)
    run(trainer)
    scored, rows = trainer.generation.training.scored, trainer.generation.training.rows
    rewards = trainer.generation.rewards.flatten().tolist()[:6]
    thoughts = [scored.root(row) for row in range(6)]
    wanted = thought_answer(rewards, [0] * 6, thoughts)
    batch = next(b for b in trainer._buffered_inputs if 0 in b["row_ids"].tolist())
    drawn = rows[:4]
    np.testing.assert_allclose(batch["answer_advantages"].numpy(), 1.5 * wanted.answer[drawn], rtol=1e-6)
    np.testing.assert_allclose(batch["thought_advantages"].numpy(), 1.5 * wanted.thought[drawn], rtol=1e-6)
    assert list(trainer._logs["advantages"])[:4] == pytest.approx(wanted.answer[drawn].tolist())
    assert [trainer.generation.rollout.completion(row) for row in range(4)] == [scored.completion(row) for row in drawn]


def test_growth_is_the_same_whether_or_not_it_succeeds(tiny_text, tmp_path, scripted):
    calls = []
    trainer = text_trainer(tiny_text, tmp_path, rows=4, reward=reward_of({0}, calls, further=0.0), **GROW)
    run(trainer)
    assert calls == [8, 2]
    assert logged(trainer, "grow/rescued") == [0.0]
    assert logged(trainer, "answer/zero_spread") == [0.5]


def test_the_budget_is_shared_by_all_prompts_without_signal(tiny_text, tmp_path, scripted):
    calls = []
    trainer = text_trainer(tiny_text, tmp_path, rows=4, reward=reward_of({0, 1}, calls), **GROW)
    run(trainer)
    assert calls == [8, 2]
    assert logged(trainer, "grow/answers") == [1.0]
    assert trainer.generation.training.weights == [5 / 4] * 8


def test_without_prompts_in_question_nothing_grows(tiny_text, tmp_path, scripted):
    calls = []
    trainer = text_trainer(tiny_text, tmp_path, rows=4, reward=reward_of(set(), calls), **GROW)
    run(trainer)
    assert calls == [8], "nothing further is scored"
    assert trainer.generation.training.weights == [1.0] * 8
    assert logged(trainer, "grow/rescued") == []


def test_a_prompt_without_a_closed_thought_gets_nothing(tiny_text, tmp_path, scripted, monkeypatch):
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, [[301], [302]], [[], []]))
    monkeypatch.setattr("trainer.engines.generating.TransformersEngine.extend", lambda self, pairs: None, raising=False)
    trainer = text_trainer(tiny_text, tmp_path, rows=4, reward=reward_of(range(4), []), **GROW)
    trainer.train()
    assert logged(trainer, "grow/answers") == [0.0]


def test_nothing_grows_during_the_answer_warm_up(tiny_text, tmp_path, scripted):
    calls = []
    changes = GROW | {"answer_warmup_steps": 1, "max_steps": 2}
    trainer = text_trainer(tiny_text, tmp_path, rows=4, reward=reward_of(range(4), calls), **changes)
    run(trainer)
    assert calls[0] == 4
    assert calls[-1] == 2


def test_sampled_answers_train_packed_as_dense(tiny_text, tmp_path):
    """The real engine: further answers hang below kept thoughts, and their rows pass the check of both layouts."""
    seen = []

    def reward(completions, **kwargs):
        seen.append(len(completions))
        return [0.0] * len(completions) if len(seen) % 2 else [float(i + 1) for i in range(len(completions))]

    trainer = text_trainer(
        tiny_text, tmp_path, rows=4, reward=reward, **GROW, max_thought_length=24, thought_end="o", seed=3
    )
    recorded = run(trainer)
    assert trainer.forward.checked
    assert seen == [8, 2]
    assert max(gradient.abs().max() for gradient in recorded.gradients[0].values()) > 0
