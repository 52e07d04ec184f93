"""The tree and its row view: leaves, paths, one owner a token, rows grouped by thought."""

import random

import pytest
from trainer_cases import chain_tree, thought_tree

from trainer.logs.metrics import rollout_sums
from trainer.rollout import Rollout, leaf_rows
from trainer.tree import PROMPT, Node, Tree


@pytest.fixture
def tree():
    """Two closed thoughts of unequal length with two answers each, and one thought that never closed."""
    return thought_tree("p", [[1, 2], [3], [4, 4, 4]], [[[5], [6, 7]], [[8, 8], [9]], []])


class TestTree:
    def test_leaves_are_the_nodes_nobody_hangs_below(self, tree):
        assert tree.leaves() == [2, 3, 4, 5, 6]

    def test_a_path_runs_from_the_first_node_below_the_prompt(self, tree):
        assert tree.path(4) == [0, 4]
        assert tree.path(2) == [2]

    def test_tokens_of_a_leaf_are_those_of_its_path(self, tree):
        assert [tree.tokens(leaf) for leaf in tree.leaves()] == [[4, 4, 4], [1, 2, 5], [1, 2, 6, 7], [3, 8, 8], [3, 9]]

    def test_a_value_goes_to_every_token_of_its_node(self, tree):
        values = {0: 0.5, 3: 1.0, 4: -1.0}
        assert tree.spread(values, 4) == [0.5, 0.5, -1.0, -1.0]
        assert tree.spread(values, 3) == [0.5, 0.5, 1.0]

    def test_a_node_without_a_value_is_an_error(self, tree):
        with pytest.raises(KeyError):
            tree.spread({0: 0.5}, 3)

    def test_a_shared_token_counts_once(self, tree):
        assert tree.unique_tokens() == 12
        assert sum(len(tree.tokens(leaf)) for leaf in tree.leaves()) == 15

    @pytest.mark.parametrize(
        "node", [Node(7, "answer"), Node(PROMPT, "tangent"), Node(PROMPT, "thought", status="odd")]
    )
    def test_unknown_parent_kind_and_status_are_our_own_fault(self, tree, node):
        with pytest.raises(AssertionError):
            tree.add(node)

    def test_random_trees_agree_with_a_recursive_walk(self):
        rng = random.Random(0)
        for _ in range(50):
            tree = Tree("r")
            for i in range(rng.randint(1, 20)):
                tree.add(
                    Node(rng.randint(PROMPT, i - 1), "segment", [rng.randint(0, 9) for _ in range(rng.randint(0, 4))])
                )

            def walk(parent, above, tree=tree):
                for i, node in enumerate(tree.nodes):
                    if node.parent == parent:
                        below = list(walk(i, above + node.token_ids))
                        yield from below or [(i, above + node.token_ids)]

            assert sorted(walk(PROMPT, [])) == sorted((leaf, tree.tokens(leaf)) for leaf in tree.leaves())


class TestRows:
    def test_rows_are_grouped_by_thought_and_an_unclosed_one_repeats(self, tree):
        assert leaf_rows(tree, 6) == [3, 4, 5, 6, 2, 2]

    def test_chains_give_a_row_each(self):
        assert leaf_rows(chain_tree("c", [[1], [2], [3]]), 3) == [0, 1, 2]

    def test_one_answer_a_thought(self):
        assert leaf_rows(thought_tree("p", [[1], [2]], [[[3]], []]), 2) == [2, 1]

    def test_a_failed_tree_gives_all_its_rows_from_one_node(self):
        failed = Tree("f", [Node(PROMPT, "thought", [0], sampled=False, status="failed")])
        assert leaf_rows(failed, 4) == [0, 0, 0, 0]

    def test_a_row_knows_its_thought_whether_it_closed_and_its_tokens(self, tree):
        rollout = Rollout.from_trees([None], [tree], 6)
        assert [rollout.root(row) for row in range(6)] == [0, 0, 1, 1, 2, 2]
        assert [rollout.closed(row) for row in range(6)] == [True] * 4 + [False] * 2
        assert rollout.completion(1) == [1, 2, 6, 7]
        assert rollout.per_token(1, lambda node: node.kind) == ["thought", "thought", "answer", "answer"]

    def test_two_trees_keep_their_rows_apart(self, tree):
        rollout = Rollout.from_trees([None, None], [tree, thought_tree("q", [[1], [2]], [[[3], [4], [5]]] * 2)], 6)
        assert rollout.row_tree == [0] * 6 + [1] * 6
        assert rollout.completion(6) == [1, 3]

    def test_tokens_that_were_not_sampled_are_masked_and_have_no_log_prob(self):
        tree = Tree("o", [Node(PROMPT, "step", [1, 2], logprobs=[-0.5, -0.25])])
        tree.add(Node(0, "observation", [3, 3, 3], sampled=False))
        tree.add(Node(1, "step", [4], logprobs=[-2.0]))
        rollout = Rollout.from_trees([None], [tree], 1)
        assert rollout.logprobs(0) == [-0.5, -0.25, 0.0, 0.0, 0.0, -2.0]
        assert rollout.per_token(0, lambda node: int(node.sampled)) == [1, 1, 0, 0, 0, 1]


class TestSums:
    def prompt(self, length):
        return type("Prompt", (), {"ids": list(range(length))})()

    def test_counts_of_a_hand_made_rollout(self, tree):
        sums = rollout_sums(Rollout.from_trees([self.prompt(10)], [tree], 6))
        assert sums["tokens/generated"] == (12, 1)
        assert sums["tokens/unique"] == (22, 1)
        assert sums["tokens/trained"] == (6 * 10 + 15 + 3, 1)
        assert sums["thought/length"] == (6, 3)
        assert sums["answer/length"] == (6, 4)
        assert sums["thought/unclosed_share"] == (1, 3)
        assert sums["rollout/failed_share"] == (0, 1)

    def test_a_failed_prompt_counts_as_failed_and_in_no_length(self, tree):
        failed = Tree("f", [Node(PROMPT, "thought", [0], sampled=False, status="failed")])
        sums = rollout_sums(Rollout.from_trees([self.prompt(10), self.prompt(3)], [tree, failed], 6))
        assert sums["rollout/failed_share"] == (1, 2)
        assert sums["thought/length"] == (6, 3)

    def test_all_processes_report_the_same_names_whatever_failed(self, tree):
        """The sums are reduced over the processes in one collective: different names would hang or mix them up."""
        failed = Tree("f", [Node(PROMPT, "thought", [0], sampled=False, status="failed")])
        good, lost = (rollout_sums(Rollout.from_trees([self.prompt(4)], [t], 6)) for t in (tree, failed))
        assert list(good) == list(lost)

    def test_chains_have_no_thoughts_to_report(self):
        sums = rollout_sums(Rollout.from_trees([self.prompt(4)], [chain_tree("c", [[1], [2]])], 2))
        assert not any(name.startswith(("thought/", "answer/")) for name in sums)
