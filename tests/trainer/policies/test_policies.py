"""Branching policies, driven by hand-made trees: no engine, no torch."""

import subprocess
import sys

import pytest

from trainer.policies.chain import ChainPolicy
from trainer.policies.segment import Segment
from trainer.policies.thought_answer import ThoughtAnswerPolicy
from trainer.tree import PROMPT, Node, Tree


def grown(kind: str) -> Tree:
    tree = Tree("p")
    tree.add(Node(PROMPT, kind, [1, 2]))
    return tree


@pytest.fixture
def policy():
    return ThoughtAnswerPolicy(4, 3, max_thought_length=128, max_answer_length=32, thought_end="</analysis>")


def test_chain_samples_all_completions_at_once_and_never_forks():
    policy = ChainPolicy(num_generations=8, max_tokens=64)
    assert policy.leaves == 8
    assert policy.start() == Segment("segment", 8, 64, stop=None)
    tree = grown("segment")
    assert [policy.next(tree, 0, ended) for ended in ("stop", "eos", "length")] == [None, None, None]
    assert tree.nodes[0].status == "ok"


def test_a_closed_thought_gets_its_answers(policy):
    tree = grown("thought")
    assert policy.leaves == 12
    assert policy.start() == Segment("thought", 4, 128, stop="</analysis>")
    assert policy.next(tree, 0, "stop") == Segment("answer", 3, 32)
    assert tree.nodes[0].status == "ok"


@pytest.mark.parametrize("ended", ["eos", "length"])
def test_a_thought_that_does_not_close_is_an_unclosed_leaf(policy, ended):
    tree = grown("thought")
    assert policy.next(tree, 0, ended) is None
    assert tree.nodes[0].status == "unclosed"


@pytest.mark.parametrize("ended", ["eos", "length"])
def test_an_answer_is_a_leaf_and_keeps_the_engines_status(policy, ended):
    tree = grown("thought")
    tree.nodes[0].status = "ok"
    tree.add(Node(0, "answer", [3], status="length"))
    assert policy.next(tree, 1, ended) is None
    assert tree.nodes[1].status == "length"


@pytest.mark.parametrize("wrong", [{"kind": "musing"}, {"count": 0}, {"max_tokens": 0}, {"stop": ""}])
def test_a_segment_that_cannot_be_sampled_is_refused(wrong):
    with pytest.raises(AssertionError):
        Segment(**{"kind": "thought", "count": 1, "max_tokens": 1} | wrong)


def test_policies_import_neither_torch_nor_an_engine():
    code = (
        "import sys, trainer.policies.chain, trainer.policies.thought_answer as t\n"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('trainer.engines')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
