"""Rewards that an environment gives for single turns: where they stand in the tree, and which credit counts them."""

import math

import numpy as np
import pytest
from agent_cases import (
    Counter,
    Echo,
    ForkingCounter,
    ScriptedAgent,
    act_by_text,
    agent_trainer,
    policy_of,
    turns,
)
from trainer_cases import logged, run

from task import gridworld
from task.errors import UserError
from trainer.advantages.gigpo import gigpo
from trainer.advantages.totals import discounted
from trainer.policies.agent.metrics import agent_sums
from trainer.tree import PROMPT, Node, Tree

ADD = "<think>t</think><add>2</add>"
ANSWER = "<think>t</think><answer>x</answer>"


class Paying(ForkingCounter):
    """Each turn is worth a tenth of the total after it."""

    def _turn_reward(self):
        return self._total / 10


class PayingReplayed(Counter):
    def _turn_reward(self):
        return self._total / 10


@pytest.mark.parametrize("made", [Paying, PayingReplayed])
def test_the_reward_of_a_turn_stands_on_its_observation_in_every_branch(tiny_text, made):
    policy = policy_of(made, tiny_text, tree_num=1, expand_num=2)
    (tree,) = ScriptedAgent(tiny_text[2], turns(ADD, ADD, "nothing", ANSWER)).grow(policy, ["a"])
    assert len(tree.leaves()) == 3
    for leaf in tree.leaves():
        assert tree.turn_rewards(leaf) == [0.2, 0.4, 0.0, 0.0]  # a turn without an action is not rewarded
    assert agent_sums([tree])["agent/turn_rewards"] == (pytest.approx(3 * 0.6), 3)


def test_without_the_hook_there_is_no_reward_and_no_metric(tiny_text):
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=0)
    (tree,) = ScriptedAgent(tiny_text[2], turns("<search>q</search>", ANSWER)).grow(policy, ["a"])
    assert tree.turn_rewards(tree.leaves()[0]) == [0.0, 0.0]
    assert "agent/turn_rewards" not in agent_sums([tree])


@pytest.mark.parametrize("wrong", [math.nan, math.inf, None, "much", ZeroDivisionError("x")])
def test_a_reward_that_is_no_number_ends_the_branch(tiny_text, wrong):
    class Wrong(Counter):
        def _turn_reward(self):
            if isinstance(wrong, Exception):
                raise wrong
            return wrong

    policy = policy_of(Wrong, tiny_text, tree_num=1, expand_num=0)
    (tree,) = ScriptedAgent(tiny_text[2], turns(ADD, ANSWER)).grow(policy, ["a"])
    assert [node.status for node in tree.nodes] == ["ok", "failed"]
    assert agent_sums([tree])["tool/errors/turn_reward"] == (1, 1)


def test_the_discounted_sum_by_hand():
    """Turn rewards 1, 0, 2 and a final reward of 8 with the third turn, gamma 1/2: 1 + 0 / 2 + (2 + 8) / 4 = 3.5."""
    of_turns, factor = discounted([1.0, 0.0, 2.0], 0.5)
    assert of_turns + factor * 8.0 == 3.5
    assert discounted([], 0.5) == (0.0, 1.0) and discounted([0.0] * 4, 1.0) == (0.0, 1.0)


def test_gigpo_by_hand():
    """Two chains of two turns, gamma 1/2. A: turn rewards 1 and 0, final 2; B: 0 and 0, final 1.

    Returns of A: 1 + (0 + 2) / 2 = 2 and 2; of B: 1 / 2 and 1. First turns differ by 1.5; the second saw other things.
    """
    tree = Tree("p")
    for number, (token, reward) in enumerate([(7, 1.0), (8, 0.0)]):
        first = tree.add(Node(PROMPT, "step", [1], group=number))
        seen = tree.add(Node(first, "observation", [token], sampled=False, reward=reward, group=number))
        tree.add(Node(seen, "step", [2], group=number))
    found = gigpo(tree, {2: 1.0, 5: -1.0}, {2: 3.0, 5: 1.0}, step_weight=1.0, gamma=0.5, scale="none")
    assert [found[i] for i in (0, 2, 3, 5)] == [1.75, 1.0, -1.75, -1.0]


@pytest.mark.parametrize(
    ("method", "sizes", "gamma"),
    [
        ("tree_grpo", {"tree_num": 2, "expand_num": 1}, 0.5),
        ("gigpo", {"num_generations": 4}, 0.5),
        ("turn_value", {"turn_chains": 2, "turn_branches": 1}, 1.0),
    ],
)
def test_rows_are_compared_by_the_return_of_their_episode(tiny_text, tmp_path, monkeypatch, method, sizes, gamma):
    act_by_text(monkeypatch)
    trainer = agent_trainer(tiny_text, tmp_path, Paying, method=method, beta=0.0, gamma=gamma, **sizes)
    run(trainer)
    rollout, rewards = trainer.generation.rollout, trainer._all_rows().rewards
    discount = 1.0 if method == "gigpo" else gamma
    final, some = trainer.generation.rewards[:, 0].tolist(), 0
    for row, (tree, leaf) in enumerate(zip(rollout.row_tree, rollout.row_leaf, strict=True)):
        of_turns = rollout.trees[tree].turn_rewards(leaf)
        of_turns[-1] += final[row]
        wanted = sum(reward * discount**t for t, reward in enumerate(of_turns))
        assert rewards[row] == pytest.approx(wanted)
        some += not np.isclose(wanted, final[row])
    assert some and logged(trainer, "agent/turn_rewards")


def test_a_walk_may_cost_something_per_turn():
    pytest.importorskip("gymnasium")
    world = gridworld.GridworldEnvironment()
    world.reset(answer=["SF", "HG"], turn_cost=0.25)
    world.move("right")
    assert world._turn_reward() == world._fork()._turn_reward() == -0.25
    world.reset(answer=["SF", "HG"])
    assert world._turn_reward() == 0
    for wrong in (-1, "0.1", True, math.nan, math.inf):
        with pytest.raises(UserError, match=r"turn_cost is .*: give a number of at least 0"):
            world.reset(answer=["SF", "HG"], turn_cost=wrong)
