"""AT2PO's branches: after the most surprising turns of a prompt, with a penalty per sibling; the leaves add up."""

from collections import Counter

import pytest
from agent_cases import Echo, ScriptedAgent, policy_of, turns

from trainer.policies.agent.surprisal import SurprisalShape, surprisal
from trainer.tree import PROMPT, Node, Tree

SEARCH, ANSWER = "<think>t</think><search>q</search>", "<think>t</think><answer>x</answer>"


def chains(*surprisals: tuple[float, ...]) -> Tree:
    """One chain per argument: a turn of two tokens for each number, its mean surprisal, with an observation between."""
    tree = Tree("p")
    for group, chain in enumerate(surprisals):
        above = PROMPT
        for place, value in enumerate(chain):
            turn = tree.add(Node(above, "step", [1, 2], logprobs=[-2 * value, 0.0], group=group))
            if place + 1 < len(chain):
                above = tree.add(Node(turn, "observation", [3], sampled=False, group=group))
    return tree


def test_surprisal_is_a_mean_over_tokens():
    assert surprisal(Node(PROMPT, "step", [1, 2, 3], logprobs=[-1.0, -2.0, -6.0])) == 3.0


def test_a_round_branches_after_the_turns_of_highest_score():
    """First turns have one sibling each: 1.0 - 0.05 and 0.94 - 0.05; second turns none: 0.93 and 0.2. Leaves never."""
    tree = chains((1.0, 0.93, 9.0), (0.94, 0.2, 9.0))
    shape = SurprisalShape(2, branches=3, rounds=1, sibling_penalty=0.05)
    assert shape.chosen(tree) == [(1, 0), (3, 0), (6, 1)]
    assert SurprisalShape(2, 3, 1, 0.0).chosen(tree) == [(1, 0), (6, 1), (3, 0)]
    assert shape.leaves == 5 and shape.of_branches == {}


def test_every_sibling_costs_the_penalty():
    tree = chains((0.5, 0.5, 1.0))
    for _ in range(2):  # two siblings of the second turn
        tree.add(Node(1, "step", [1], logprobs=[0.0]))
    assert SurprisalShape(1, 1, 1, 0.05).chosen(tree) == [(1, 0)]
    tree.nodes[2].logprobs = [-1.3, 0.0]  # 0.65 - 2 * 0.05 = 0.55
    assert SurprisalShape(1, 1, 1, 0.05).chosen(tree) == [(3, 0)]
    assert SurprisalShape(1, 1, 1, 0.08).chosen(tree) == [(1, 0)]


def test_with_more_branches_than_turns_they_branch_again():
    tree = chains((0.1, 0.2, 0.3))
    assert SurprisalShape(1, 5, 1, 0.05).chosen(tree) == [(3, 0), (1, 0), (3, 0), (1, 0), (3, 0)]
    assert SurprisalShape(1, 2, 1, 0.05).chosen(chains((0.1,), (0.2,))) == [(PROMPT, None)] * 2


@pytest.mark.parametrize("write", [turns(SEARCH, SEARCH, ANSWER), turns(ANSWER), turns(SEARCH)])
def test_every_prompt_has_its_leaves(tiny_text, write):
    policy = policy_of(Echo, tiny_text, max_turns=3)
    policy.shape = SurprisalShape(3, 2, 2, 0.05)
    (tree,) = ScriptedAgent(tiny_text[2], write).grow(policy, ["a"])
    assert len(tree.leaves()) == policy.shape.leaves == 7
    children = Counter(node.parent for node in tree.nodes if node.kind == "step")
    fresh = children[PROMPT]
    assert fresh == (3 if len(children) > 1 else 7)
    assert {node.group for node in tree.nodes} == set(range(fresh))
