"""EntropyPolicy on a scripted model: where forks land, and the budget."""

import math
import subprocess
import sys
from collections import Counter

import pytest
from scripted_growth import EOS, ScriptedEngine

from trainer.policies.entropy.metrics import fork_sums, mixed_siblings
from trainer.policies.entropy.policy import EntropyPolicy
from trainer.policies.entropy.rules import START, ForkRule, OpenText
from trainer.policies.entropy.threshold import threshold_of, top_share
from trainer.tree import PROMPT, Node, Tree

LETTERS = {EOS: "<|end|>", **{i: chr(ord("a") + i - 1) for i in range(1, 27)}, 30: "<", 31: "think", 32: ">", 33: "</"}


def decode(ids):
    return "".join(LETTERS[i] for i in ids)


def policy(trees=2, leaves=4, tokens=12, rule="entropy", threshold=0.5, gap=1, marks=(), **changes) -> EntropyPolicy:
    return EntropyPolicy(trees, leaves, tokens, ForkRule(rule, threshold), OpenText(decode, marks), gap, **changes)


def sure_but(*unsure):
    """Token 1 with certainty, but at the given depths 1 or 2 with even odds (ln 2 nats); the end after ten tokens."""

    def distribution(path):
        if len(path) == 10:
            return {EOS: 1.0}
        return {1: 0.5, 2: 0.5} if len(path) in unsure else {1: 1.0}

    return distribution


def depths(tree: Tree) -> list[int]:
    """Tokens before each fork, sorted."""
    children = Counter(node.parent for node in tree.nodes if node.parent != PROMPT)
    return sorted(len(tree.tokens(node)) for node, count in children.items() if count > 1)


def grow(policy, distribution, prompts=1, seed=0):
    engine = ScriptedEngine(distribution, seed)
    return engine.grow(policy, [f"p{i}" for i in range(prompts)]), engine


class TestWhereForksLand:
    def test_only_at_the_unsure_tokens_in_a_thousand_prompts(self):
        trees, _ = grow(policy(leaves=6), sure_but(3, 6), prompts=1000)
        assert {tuple(depths(tree)) for tree in trees} == {(3, 3, 6, 6)}
        assert all(len(tree.leaves()) == 6 for tree in trees)
        children = [node for tree in trees for node in tree.nodes if node.parent != PROMPT]
        assert all(node.entropies[0] == pytest.approx(math.log(2)) for node in children)

    def test_siblings_begin_with_different_tokens_unless_told_otherwise(self):
        def share_of_equal(distinct):
            trees, _ = grow(policy(trees=1, leaves=2, distinct=distinct), sure_but(4), prompts=400)
            pairs = [[node.token_ids[0] for node in tree.nodes if node.parent == 0] for tree in trees]
            return sum(left == right for left, right in pairs) / len(pairs)

        assert share_of_equal(True) == 0
        assert 0.4 < share_of_equal(False) < 0.6

    def test_the_gap_holds_before_the_first_fork_and_between_two(self):
        trees, _ = grow(policy(trees=1, leaves=8, gap=3), sure_but(*range(10)), prompts=20)
        assert {tuple(depths(tree)) for tree in trees} == {(3, 6, 6, 9, 9, 9, 9)}

    def test_in_one_step_the_higher_entropy_forks_first(self):
        def distribution(path):
            if len(path) == 4:
                return {EOS: 1.0}
            if len(path) == 0:
                return {1: 0.5, 2: 0.5}
            if len(path) == 2:
                return {1: 0.5, 2: 0.5} if path[0] == 1 else {1: 0.4, 2: 0.3, 3: 0.3}
            return {1: 1.0}

        trees, _ = grow(policy(trees=3, leaves=4), distribution, prompts=200)
        for tree in trees:
            firsts = {tree.nodes[group].token_ids[0] for group in range(3)}
            (forked,) = {tree.path(leaf)[0] for leaf in tree.leaves() if len(tree.path(leaf)) > 1}
            assert tree.nodes[forked].token_ids[0] == max(firsts)

    def test_never_inside_a_tag_nor_after_the_answer_began(self):
        script = [30, 31, 32, 1, 2, 33, 31, 32, 1, 2]  # <think>ab</think>ab

        def distribution(path):
            if len(path) == len(script):
                return {EOS: 1.0}
            return {script[len(path)]: 0.5, 26: 0.25, 25: 0.25} if path == tuple(script[: len(path)]) else {EOS: 1.0}

        def places(marks):
            trees, _ = grow(policy(leaves=40, trees=20, marks=marks), distribution, prompts=40)
            return {depth for tree in trees for depth in depths(tree)}

        assert places(()) == {3, 4, 5, 8, 9}
        assert places(("</think>", "<answer>")) == {3, 4, 5}

    def test_a_comparison_is_no_tag(self):
        assert OpenText(lambda ids: "so 3 < 4").allows([1])
        assert not OpenText(lambda ids: "so </thi").allows([1])


class TestBudget:
    def test_a_prompt_always_gets_its_leaves(self):
        for leaves in range(2, 12):
            trees, _ = grow(policy(leaves=leaves, branch_factor=3), sure_but(2, 3, 4), prompts=5)
            assert {len(tree.leaves()) for tree in trees} == {leaves}

    def test_a_threshold_no_token_reaches_gives_plain_chains(self):
        trees, engine = grow(policy(leaves=5, threshold=9.0), sure_but(2), prompts=3)
        for tree in trees:
            assert [node.parent for node in tree.nodes] == [PROMPT] * 5
            assert [node.group for node in tree.nodes] == [0, 1, 2, 3, 4]
        assert engine.generated == 3 * 5 * 11

    def test_as_many_trees_as_leaves_give_plain_chains(self):
        trees, _ = grow(policy(trees=4, leaves=4), sure_but(2))
        assert [node.parent for node in trees[0].nodes] == [PROMPT] * 4

    def test_chains_of_one_token(self):
        trees, _ = grow(policy(leaves=4), lambda path: {EOS: 1.0})
        assert [node.token_ids for node in trees[0].nodes] == [[EOS]] * 4

    def test_chains_that_make_up_for_missing_forks_do_not_fork(self):
        trees, _ = grow(policy(trees=1, leaves=4, gap=4), lambda path: {1: 0.5, EOS: 0.5}, prompts=300)
        filled = [tree for tree in trees if max(node.group for node in tree.nodes) > 0]
        assert filled
        for tree in filled:
            assert all(node.parent == PROMPT for node in tree.nodes if node.group > 0)

    def test_no_completion_is_longer_than_allowed(self):
        trees, _ = grow(policy(leaves=8, tokens=6), sure_but(1, 2, 3, 4, 5), prompts=20)
        assert {len(tree.tokens(leaf)) for tree in trees for leaf in tree.leaves()} == {6}
        assert {tree.nodes[leaf].status for tree in trees for leaf in tree.leaves()} == {"length"}


class TestRules:
    def test_random_forks_do_not_look_at_the_distribution(self):
        trees, _ = grow(policy(trees=4, leaves=64, rule="random", threshold=0.8), sure_but(), prompts=60)
        first = Counter(min(depths(tree), default=0) for tree in trees)
        assert set(range(1, 6)) <= set(first)
        again, _ = grow(policy(trees=4, leaves=64, rule="random", threshold=0.8), sure_but(), prompts=60)
        assert [depths(tree) for tree in again] == [depths(tree) for tree in trees]

    def test_random_forks_come_as_often_as_the_share_says(self):
        rule = ForkRule("random", threshold_of("random", 0.2, None, {}), seed="1")
        hits = [rule.forks(0.0, 0.0, f"tree {i}", [1, 2, i]) for i in range(5000)]
        assert 0.18 < sum(hits) / len(hits) < 0.22

    def test_surprisal_looks_at_the_token(self):
        rule = ForkRule("surprisal", 2.0)
        assert rule.forks(0.1, -2.5, "", []) and not rule.forks(5.0, -1.5, "", [])

    def test_segments_of_fixed_length(self):
        trees, _ = grow(policy(trees=1, leaves=8, rule="fixed", threshold=0.0, gap=4), sure_but())
        assert depths(trees[0]) == [4, 8, 8]


class TestThreshold:
    def test_the_first_generation_starts_at_ln_2_and_the_next_take_what_was_measured(self):
        memory = {}
        assert threshold_of("entropy", 0.2, None, memory) == START == math.log(2)
        first = policy(share=0.2, memory=memory)
        trees, _ = grow(first, sure_but(3, 6), prompts=10)
        sums = first.metrics(trees)
        first.remember({name: total / count for name, (total, count) in sums.items() if count})
        assert memory == {"fork_entropy": sums["fork/measured"][0], "fork_generation": 1}
        first.remember({"fork/measured": 0.1})
        assert memory["fork_entropy"] == pytest.approx((sums["fork/measured"][0] + 0.1) / 2)
        first.remember({"fork/measured": math.nan})
        assert memory["fork_entropy"] == pytest.approx((sums["fork/measured"][0] + 0.1) / 2)
        assert threshold_of("entropy", 0.2, None, memory) == memory["fork_entropy"]
        assert threshold_of("entropy", 0.2, 1.5, memory) == 1.5

    def test_the_share_is_of_the_tokens_before_the_answer(self):
        tree = Tree("p")
        tree.add(
            Node(PROMPT, "segment", [1, 2, 3, 33, 31, 32], logprobs=[-1.0] * 6, entropies=[0.0, 1.0, 2.0, 0, 0, 0])
        )
        for token in (4, 5):
            tree.add(Node(0, "segment", [token], logprobs=[-1.0], entropies=[9.0]))
        tree.add(Node(PROMPT, "segment", [9], sampled=False, status="failed"))
        rule = ForkRule("entropy", 1.0)
        assert top_share([tree], rule, OpenText(decode, ("</think>",)), 0.34) == 0.0
        assert top_share([tree], rule, OpenText(decode, ("</think>",)), 0.2) == 1.0
        assert top_share([tree], rule, OpenText(decode), 0.2) == 9.0
        assert math.isnan(top_share([], rule, OpenText(decode), 0.2))


class TestMetrics:
    def forest(self) -> Tree:
        tree = Tree("p")
        for parent, ids in ((PROMPT, [1, 2]), (0, [3]), (0, [4, 5]), (2, [6]), (2, [6]), (PROMPT, [7, 8, 9])):
            tree.add(Node(parent, "segment", ids, logprobs=[-1.0] * len(ids), entropies=[0.5] * len(ids)))
        return tree

    def test_hand_counted(self):
        sums = fork_sums([self.forest()], num_trees=1)
        assert sums["fork/count"] == (2, 1)
        assert sums["fork/filled"] == (1, 1)
        assert sums["fork/depth"] == (2 + 4, 2)
        assert sums["fork/entropy"] == (1.0, 2)
        assert sums["fork/saved"] == ((3 + 5 + 5 + 3) - 10, 16)
        assert sums["fork/distinct"] == (3, 4)

    def test_the_names_are_the_same_without_any_tree(self):
        failed = Tree("p", [Node(PROMPT, "segment", [0], sampled=False, status="failed")])
        grower = policy(share=0.2)
        names = grower.metrics([self.forest()]).keys()
        assert names == grower.metrics([]).keys() == grower.metrics([failed]).keys()

    def test_mixed_siblings(self):
        tree = self.forest()
        assert mixed_siblings(tree, {1: 1.0, 3: 0.0, 4: 0.0, 5: 1.0}) == (1, 2)
        assert mixed_siblings(tree, {1: 0.5, 3: 0.0, 4: 1.0}) == (1, 2)
        assert mixed_siblings(tree, {1: 1.0, 3: 0.0}) == (1, 1)
        assert mixed_siblings(tree, {}) == (0, 0)


def test_the_policy_imports_neither_torch_nor_an_engine():
    heavy = "('torch', 'trainer.engines')"
    code = f"import sys, trainer.policies.entropy.policy; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
