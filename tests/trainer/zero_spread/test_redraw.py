"""Prompts whose rewards do not differ are replaced before the update, and nothing else of a run changes."""

import json

import pytest
from agent_cases import Echo, task_of
from trainer_cases import logged, script, text_trainer, thought_tree, weights

from trainer.policies.agent.forms import Action, TagForm, Turn

REDRAW = {"on_zero_spread": "redraw", "gradient_accumulation_steps": 2}
TREE = [[[301], [302]], [[[303], [304]], [[305], [306]]]]
SIGNAL = [0.0, 1.0, 0.0, 1.0]


def number(record: dict) -> int:
    return record["answer"]


def reward_of(flat, calls=None):
    """Equal rewards for the rows of `text_rows` whose number is in `flat`, else `SIGNAL`; notes what it scored."""

    def reward(completions, record, prompts, **kwargs):
        assert all(one["question"] == prompt for one, prompt in zip(record, prompts, strict=True))
        if calls is not None:
            calls.append([number(one) for one in record])
        return [1.0 if number(one) in flat else SIGNAL[i % 4] for i, one in enumerate(record)]

    return reward


@pytest.fixture
def scripted(monkeypatch):
    """Every prompt grows the same tree."""
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, *TREE))


def trained(trainer) -> list[str]:
    return [tree.prompt_id for tree in trainer.generation.rollout.trees]


def generations(trainer) -> list[list[str]]:
    """The prompts of each generation of a run, as they train."""
    seen, original = [], trainer.rollout_func

    def grow(prompts, _):
        result = original(prompts, _)
        seen.append(trained(trainer))
        return result

    trainer.rollout_func = grow
    return seen


def test_prompts_without_signal_are_replaced_until_all_have_one(tiny_text, tmp_path, scripted):
    calls = []
    trainer = text_trainer(tiny_text, tmp_path, rows=12, reward=reward_of({0, *range(4, 10)}, calls), **REDRAW)
    trainer.args.max_redraws = 10
    trainer.train()
    first, second = trained(trainer)
    assert second == "row-1", "a prompt with signal stays in its place"
    assert first in {"row-2", "row-3", "row-10", "row-11"}
    scored = [row for call in calls for row in call]
    assert all(scored.count(row) == 4 for row in set(scored)), "each row is scored once"
    assert calls[0] == [0] * 4 + [1] * 4
    assert logged(trainer, "redraw/share") == [0.5]
    assert logged(trainer, "redraw/drawn") == [(len(calls) - 1) / 2]
    assert logged(trainer, "redraw/left") == logged(trainer, "answer/zero_spread") == [0.0]
    assert logged(trainer, "redraw/first_reward") == [0.75]
    assert logged(trainer, "redraw/tokens") == [6 * (len(calls) - 1) / 2]
    assert logged(trainer, "reward") == [0.5]


def test_what_was_drawn_is_written_and_stands_in_trls_table(tiny_text, tmp_path, scripted):
    trainer = text_trainer(tiny_text, tmp_path, rows=6, reward=reward_of({0}), **REDRAW)
    trainer.train()
    (line,) = (tmp_path / "redraws.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["id"] == trained(trainer)[0] == f"row-{found['row']}"
    assert (found["step"], found["round"], found["prompt"]) == (0, 0, 0)
    question = f"Move the gripper to the red cone {found['row']}."
    assert list(trainer._logs["prompt"]) == [question] * 4 + ["Move the gripper to the red cone 1."] * 4
    assert [record["id"] for record in trainer.generation.records] == trained(trainer)
    assert trainer.generation.rewards.flatten().tolist() == SIGNAL * 2


def test_rounds_are_bounded_and_what_is_left_trains_and_is_counted(tiny_text, tmp_path, scripted):
    calls = []
    trainer = text_trainer(tiny_text, tmp_path, rows=40, reward=reward_of(range(40), calls), **REDRAW, max_redraws=2)
    trainer.train()
    assert [len(call) for call in calls] == [8, 8, 8]
    assert logged(trainer, "redraw/left") == [1.0]
    assert logged(trainer, "redraw/drawn") == [2.0]
    assert len(trained(trainer)) == 2


def test_a_dataset_without_other_prompts_ends_the_rounds(tiny_text, tmp_path, scripted):
    calls = []
    trainer = text_trainer(tiny_text, tmp_path, rows=3, reward=reward_of(range(3), calls), **REDRAW)
    trainer.train()
    assert [len(call) for call in calls] == [8, 4]
    assert len(set(trained(trainer))) == 2


def test_the_loaders_order_is_undisturbed(tiny_text, tmp_path, scripted):
    changes = {"rows": 12, "max_steps": 4, "shuffle_dataset": True, "gradient_accumulation_steps": 2}
    orders = []
    for folder, own in (("keep", {}), ("redraw", {"on_zero_spread": "redraw", "max_redraws": 1})):
        trainer = text_trainer(tiny_text, tmp_path / folder, reward=reward_of({2, 5, 7}), **changes, **own)
        seen = generations(trainer)
        trainer.train()
        orders.append(seen)
    flat = {f"row-{i}" for i in (2, 5, 7)}
    plain, redrawn = ([name for names in order for name in names] for order in orders)
    assert all(new == old for old, new in zip(plain, redrawn, strict=True) if old not in flat)
    assert any(new != old for old, new in zip(plain, redrawn, strict=True))


def test_bounds_on_the_mean_reward_replace_prompts_that_differ(tiny_text, tmp_path, scripted):
    def reward(record, **kwargs):
        return [SIGNAL[i % 4] if number(one) else float(i % 4 == 0) for i, one in enumerate(record)]

    bounds = {"keep_between": [0.4, 0.9]}
    trainer = text_trainer(tiny_text, tmp_path, rows=8, reward=reward, **REDRAW, **bounds)
    trainer.train()
    assert trained(trainer)[0] != "row-0"
    assert logged(trainer, "redraw/first_reward") == [0.375]


def test_a_prompt_that_cannot_be_scored_is_replaced(tiny_text, tmp_path, scripted):
    def reward(record, **kwargs):
        return [SIGNAL[i % 4] if number(one) else None for i, one in enumerate(record)]

    trainer = text_trainer(tiny_text, tmp_path, rows=8, reward=reward, **REDRAW)
    trainer.train()
    assert trained(trainer)[0] != "row-0"


def test_columns_and_metrics_of_rewards_follow_their_rows(tiny_text, tmp_path, scripted):
    def reward(record, log_extra, log_metric, **kwargs):
        log_extra("number", [number(one) for one in record])
        log_metric("scored", float(len(record)))
        return reward_of({0})(record=record, completions=[], prompts=[one["question"] for one in record])

    trainer = text_trainer(tiny_text, tmp_path, rows=8, reward=reward, **REDRAW)
    trainer.train()
    names = [f"row-{n}" for n in trainer._logs["extra"]["number"]]
    assert names == [name for name in trained(trainer) for _ in range(4)]
    assert logged(trainer, "scored") == [6.0]  # the mean of 8 rows and of the 4 that were drawn


def test_a_resumed_run_equals_the_uninterrupted_one(tiny_text, tmp_path):
    """Same prompts, same rollouts, same weights; rewards are equal for about half of the prompts."""

    def reward(completions, record, **kwargs):
        return [
            (sum(map(ord, t)) % 97 / 97) if number(r) % 2 else 0.0 for t, r in zip(completions, record, strict=True)
        ]

    changes = {
        "on_zero_spread": "redraw", "shuffle_dataset": True, "optim": "adamw_torch", "learning_rate": 1e-3,
        "save_strategy": "steps", "save_steps": 2, "max_steps": 4, "rows": 9, "reward": reward,
    }  # fmt: skip
    whole = text_trainer(tiny_text, tmp_path, **changes)
    order = generations(whole)
    whole.train()
    resumed = text_trainer(tiny_text, tmp_path, **changes)
    rest = generations(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert rest == order[2:]
    assert (tmp_path / "redraws.jsonl").stat().st_size > 0
    assert all(weight.equal(weights(whole)[name]) for name, weight in weights(resumed).items())


@pytest.mark.parametrize("method", ["grpo", "tree_adv", "tree_grpo"])
def test_other_methods_redraw_too(tiny_text, tmp_path, monkeypatch, method):
    def read(self, text, ended):
        return Turn(answered=True) if sum(map(ord, text)) % 4 == 0 else Turn(actions=(Action("search", "q"),))

    monkeypatch.setattr(TagForm, "read", read)
    sizes = {
        "grpo": {"num_generations": 4, "max_completion_length": 8},
        "tree_adv": {"num_generations": 4, "num_trees": 2, "min_gap": 2, "max_completion_length": 8},
        "tree_grpo": {"max_turns": 2, "max_turn_length": 6, "max_observation_length": 40, "beta": 0.0,
                      "max_completion_length": 100},
    }  # fmt: skip

    def reward(record, **kwargs):
        return [float(i % 2) if number(one) else 0.0 for i, one in enumerate(record)]

    trainer = text_trainer(
        tiny_text, tmp_path, rows=6, reward=reward, method=method, on_zero_spread="redraw", **sizes[method]
    )
    trainer.tasks = {"test": task_of(Echo, "test")}
    trainer.train()
    assert trained(trainer)[0] != "row-0"
    assert logged(trainer, "redraw/share") == [1.0]
