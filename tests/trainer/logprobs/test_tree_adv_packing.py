"""Packed and dense passes over entropy trees of irregular depth."""

import random

import pytest
from packing_cases import PICTURE, assert_packed_equals_dense, text_model, text_prompt, tiny_vlm, vlm_prompt
from scripted_growth import EOS, ScriptedEngine

from trainer.policies.entropy.policy import EntropyPolicy
from trainer.policies.entropy.rules import ForkRule, OpenText


def entropy_tree(seed: int):
    """A tree of 3 to 8 leaves, its forks at depths that differ from branch to branch."""
    draw = random.Random(seed)
    leaves = draw.randint(3, 8)

    def distribution(path):
        own = random.Random(f"{seed} {path}")
        tokens = own.sample(range(5, 60), own.randint(1, 4))
        return {token: 1 / (len(tokens) + 0.15) for token in tokens} | {EOS: 0.15 / (len(tokens) + 0.15)}

    text = OpenText(lambda ids: "")
    policy = EntropyPolicy(draw.randint(1, 3), leaves, 12, ForkRule("entropy", 0.9), text, min_gap=draw.randint(1, 3))
    (tree,) = ScriptedEngine(distribution, seed).grow(policy, ["p"])
    return tree


def completions(tree):
    return [tree.tokens(leaf) for leaf in tree.leaves()]


def test_the_trees_are_irregular():
    trees = [entropy_tree(seed) for seed in range(50)]
    depths = [{len(tree.path(leaf)) for leaf in tree.leaves()} for tree in trees]
    assert sum(len(found) > 1 for found in depths) > 25
    assert max(max(found) for found in depths) >= 4


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_log_probs_and_gradients_of_ten_forests(first):
    for seed in range(first, first + 10):
        rows = completions(entropy_tree(seed))
        prompt = text_prompt([1, 2, 3 + seed % 5])
        assert_packed_equals_dense(*text_model(), ([prompt], [0] * len(rows), rows), max_slots=[None, 24][seed % 2])


def test_log_probs_and_gradients_of_forests_below_pictures():
    prompts = [vlm_prompt([1, PICTURE, 2], 0), vlm_prompt([4, 2], 1)]
    trees = [completions(entropy_tree(seed)) for seed in (3, 4)]
    rows = [p for p, tree in enumerate(trees) for _ in tree]
    assert_packed_equals_dense(*tiny_vlm(), (prompts, rows, [row for tree in trees for row in tree]))
