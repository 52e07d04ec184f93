"""Draws are functions of their arguments alone: which prompts replace others, where answers grow, which rows train."""

import numpy as np
import pytest

from trainer.zero_spread.draws import answers_per_tree, substitutes, trained_rows, without_signal


class TestSubstitutes:
    def test_they_are_distinct_and_none_is_of_the_generation(self):
        found = substitutes(50, [3, 7, 9], seed=1, generation=4, rounds=5, groups=4)
        assert found.shape == (5, 4)
        assert len(set(found.flatten().tolist())) == 20
        assert not set(found.flatten().tolist()) & {3, 7, 9, -1}

    def test_they_depend_on_seed_generation_round_and_place_alone(self):
        found = substitutes(50, [3], seed=1, generation=4, rounds=3, groups=4)
        assert np.array_equal(found, substitutes(50, [3], seed=1, generation=4, rounds=3, groups=4))
        assert np.array_equal(found[:2], substitutes(50, [3], seed=1, generation=4, rounds=2, groups=4))
        for other in ({"seed": 2}, {"generation": 5}):
            assert not np.array_equal(
                found, substitutes(50, [3], **({"seed": 1, "generation": 4} | other), rounds=3, groups=4)
            )

    def test_a_small_dataset_runs_out(self):
        found = substitutes(6, [0, 1, 2], seed=0, generation=0, rounds=2, groups=2).flatten().tolist()
        assert sorted(found) == [-1, 3, 4, 5]
        assert found[-1] == -1, "early rounds are filled first"

    def test_every_prompt_is_equally_likely(self):
        counts = np.bincount(
            np.concatenate([substitutes(10, [0, 1], 0, g, 1, 2).flatten() for g in range(2000)]), minlength=10
        )
        assert counts[:2].tolist() == [0, 0]
        assert np.abs(counts[2:] - 500).max() < 5 * np.sqrt(500 * 7 / 8)


class TestWithoutSignal:
    def test_bounds_are_on_the_mean_reward(self):
        totals, groups = np.array([0.0, 1.0, 1.0, 1.0, 0.0, 0.5, 0.5, 0.0]), np.array([0, 0, 1, 1, 2, 2, 3, 3])
        assert without_signal(totals, groups) == [1]
        assert without_signal(totals, groups, (0.3, 0.9)) == [1, 2, 3]

    def test_equal_float32_rewards_do_not_differ(self):
        totals = np.array([0.1, np.float32(0.1), 0.1], dtype=np.float64)
        assert without_signal(totals, np.zeros(3)) == [0]

    @pytest.mark.parametrize("rewards", [[np.nan, np.nan], [1.0, np.nan]])
    def test_a_group_with_fewer_than_two_rewards_has_none(self, rewards):
        assert without_signal(np.array(rewards), np.zeros(2)) == [0]


class TestAnswersPerTree:
    def test_the_whole_budget_is_spread_evenly(self):
        found = answers_per_tree([0, 2, 5], budget=8, most=16, seed=0, generation=3)
        assert sorted(found.values()) == [2, 3, 3]
        assert found.keys() == {0, 2, 5}

    def test_no_tree_gets_more_than_its_leaves(self):
        assert answers_per_tree([4], budget=25, most=16, seed=0, generation=0) == {4: 16}

    def test_a_small_budget_reaches_other_trees_in_other_generations(self):
        lucky = {tuple(answers_per_tree([0, 1, 2, 3], 1, 16, 0, generation).values()) for generation in range(40)}
        assert len(lucky) == 4
        assert all(sum(counts) == 1 for counts in lucky)

    def test_without_trees_there_is_nothing_to_spread(self):
        assert answers_per_tree([], budget=8, most=16, seed=0, generation=0) == {}


class TestTrainedRows:
    def test_each_row_is_drawn_equally_often(self):
        counts = np.zeros(10)
        for generation in range(4000):
            rows = trained_rows(10, 8, seed=0, generation=generation, tree=1)
            assert rows == sorted(set(rows))
            assert len(rows) == 8
            counts[rows] += 1
        assert np.abs(counts / 4000 - 0.8).max() < 5 * np.sqrt(0.8 * 0.2 / 4000)

    def test_without_further_rows_all_train(self):
        assert trained_rows(4, 4, seed=0, generation=0, tree=0) == [0, 1, 2, 3]
