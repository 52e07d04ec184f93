"""Advantages against values worked out by hand, and the law their variance follows."""

import math

import numpy as np
import pytest

from trainer.advantages.groups import standardise
from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.thought_answer import thought_answer
from trainer.advantages.totals import row_totals

NAN = float("nan")


class TestLeafGroup:
    def test_one_right_of_four(self):
        assert leaf_group([1, 0, 0, 0], [7] * 4) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-3)

    def test_the_epsilon_is_1e_4_and_the_std_the_sample_one(self):
        assert leaf_group([1, 0], [0, 0])[0] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4), rel=1e-12)

    def test_prompts_may_stand_interleaved(self):
        """One prompt always right, the other always wrong: cut by position instead of id this gives +-0.866."""
        assert leaf_group([1, 0] * 4, ["a", "b"] * 4).tolist() == [0.0] * 8

    def test_groups_of_unequal_size_and_a_group_of_one(self):
        assert leaf_group([1, 3, 5], [0, 0, 1]) == pytest.approx([-0.7071, 0.7071, 0.0], abs=1e-3)

    def test_equal_rewards_give_exactly_zero_also_in_float32(self):
        rewards = np.full(7, 0.1, dtype=np.float32)
        assert leaf_group(rewards, [0] * 7).tolist() == [0.0] * 7

    def test_a_spread_that_is_rounding_counts_as_none(self):
        """Sums of weighted rewards in another order differ in the last bits: that is no signal."""
        assert leaf_group([0.1 + 0.2, 0.3], [0, 0]).tolist() == [0.0, 0.0]
        assert leaf_group([1000.0, 1000.0005], [0, 0]).tolist() == [0.0, 0.0]

    def test_a_small_spread_that_is_real_counts(self):
        assert leaf_group([0.0, 1e-5], [0, 0])[1] > 0

    def test_an_abstaining_row_enters_no_mean_and_gets_nothing(self):
        assert leaf_group([1, NAN, 0, NAN], [0] * 4) == pytest.approx([0.7070, 0, -0.7070, 0], abs=1e-3)

    def test_all_abstaining_and_an_empty_batch_are_zero_without_a_warning(self, recwarn):
        assert leaf_group([NAN, NAN], [0, 0]).tolist() == [0.0, 0.0]
        assert leaf_group([], []).tolist() == []
        assert len(recwarn) == 0

    @pytest.mark.parametrize("bad", [math.inf, -math.inf])
    def test_an_infinite_reward_is_refused(self, bad):
        with pytest.raises(ValueError, match="inf is not finite: a reward must be a finite number or None"):
            standardise([1.0, bad], [0, 0])


class TestTotals:
    def totals(self, values, weights=(1, 1), prompts=None, is_task_reward=(True, True)):
        prompts = [0] * len(values) if prompts is None else prompts
        return row_totals(values, weights, prompts, is_task_reward).tolist()

    def test_a_row_that_its_judge_could_not_score_is_no_wrong_answer(self):
        """Form 1 and a lost verifier would sum to the 1 of form 1 and a wrong answer."""
        values = [[1, 1], [1, NAN], [1, 0], [0, 0]]
        assert self.totals(values) == pytest.approx([2, NAN, 1, 0], nan_ok=True)
        advantages = leaf_group(self.totals(values), [0] * 4)
        assert advantages == pytest.approx([1, 0, 0, -1], abs=1e-3)

    def test_a_judge_that_scores_no_row_of_a_prompt_does_not_apply_there(self):
        values = [[1, NAN], [0, NAN], [1, 1], [1, NAN]]
        assert self.totals(values, prompts=["b", "b", "a", "a"]) == pytest.approx([1, 0, 2, NAN], nan_ok=True)

    def test_other_functions_may_abstain_on_any_row(self):
        assert self.totals([[1, 1], [1, NAN], [NAN, NAN]], is_task_reward=(True, False))[:2] == [2, 1]

    def test_a_function_without_weight_makes_no_row_worth_zero(self):
        values = [[1, 1], [1, NAN], [NAN, 0]]
        for is_task_reward in ((True, True), (False, False)):
            assert self.totals(values, (0, 2), is_task_reward=is_task_reward) == pytest.approx([2, NAN, 0], nan_ok=True)

    def test_no_row_and_no_value(self):
        assert row_totals(np.zeros((0, 2)), [1, 1], [], [True, True]).tolist() == []
        assert self.totals([[NAN, NAN]] * 2) == pytest.approx([NAN, NAN], nan_ok=True)


class TestThoughtAnswer:
    def test_two_thoughts_of_two_answers(self):
        """Rewards [[1, 0], [0, 0]]: thought values 0.5 and 0."""
        out = thought_answer([1, 0, 0, 0], [0] * 4, [0, 0, 1, 1])
        assert out.thought == pytest.approx([0.7071, 0.7071, -0.7071, -0.7071], abs=1e-3)
        assert out.answer == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-3)

    def test_one_answer_a_thought_is_plain_grpo(self):
        rewards, prompts = [0.3, 0.9, 0.1, 0.4, 0.4, 0.7], [0, 0, 0, 1, 1, 1]
        out = thought_answer(rewards, prompts, range(6))
        assert out.thought.tolist() == out.answer.tolist() == leaf_group(rewards, prompts).tolist()

    def test_one_thought_has_no_advantage_but_its_answers_do(self):
        out = thought_answer([1, 0, 0, 0], [0] * 4, [0] * 4)
        assert out.thought.tolist() == [0.0] * 4
        assert out.answer == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-3)

    def test_a_dropped_answer_leaves_its_thoughts_value_defined(self):
        full = thought_answer([1, 0, 0, 0], [0] * 4, [0, 0, 1, 1])
        for rewards, thoughts in (([1, 0, 0], [0, 0, 1]), ([1, 0, 0, NAN], [0, 0, 1, 1])):
            out = thought_answer(rewards, [0] * len(rewards), thoughts)
            assert out.thought[[0, 2]] == pytest.approx(full.thought[[0, 2]])
            assert np.isfinite(out.thought).all() and np.isfinite(out.answer).all()

    def test_a_thought_that_nobody_scored_gets_nothing_and_the_others_compare(self):
        out = thought_answer([1, 1, 0, 0, NAN, NAN], [0] * 6, [0, 0, 1, 1, 2, 2])
        assert out.thought == pytest.approx([0.7071, 0.7071, -0.7071, -0.7071, 0, 0], abs=1e-3)

    def test_the_order_of_rows_does_not_matter(self):
        rng = np.random.default_rng(0)
        prompts = np.repeat([3, 8], 12)
        thoughts = np.repeat(np.arange(8), 3) + 100
        rewards = rng.random(24)
        rewards[5] = NAN
        out = thought_answer(rewards, prompts, thoughts)
        for _ in range(5):
            order = rng.permutation(24)
            shuffled = thought_answer(rewards[order], prompts[order], thoughts[order])
            assert shuffled.thought == pytest.approx(out.thought[order], abs=1e-12)
            assert shuffled.answer == pytest.approx(out.answer[order], abs=1e-12)
            assert shuffled.rho == pytest.approx(out.rho)

    def test_a_thought_of_two_prompts_is_our_own_fault(self):
        with pytest.raises(AssertionError, match="belongs to one prompt"):
            thought_answer([1, 0], [0, 1], [5, 5])

    def test_zero_spread_of_each_level(self):
        """First prompt: thoughts of equal value but unequal answers; second: all rewards equal."""
        rewards = [1, 0, 1, 0, 0.1, 0.1, 0.1, 0.1]
        out = thought_answer(rewards, [0] * 4 + [1] * 4, [0, 0, 1, 1, 2, 2, 3, 3])
        assert (out.thought_zero_spread, out.answer_zero_spread) == (1.0, 0.5)
        assert out.thought.tolist() == [0.0] * 8
        assert out.answer[4:].tolist() == [0.0] * 4


class TestReliability:
    def test_decomposition_by_hand(self):
        """Rewards [[1, 0], [0, 0]]: within (0.5 + 0) / 2, spread of means 0.125, its noise 0.25 / 2."""
        out = thought_answer([1, 0, 0, 0], [0] * 4, [0, 0, 1, 1])
        assert (out.within, out.between, out.rho) == pytest.approx((0.25, 0.0, 0.0))

    def test_thoughts_that_decide_everything_have_rho_one(self):
        out = thought_answer([1, 1, 0, 0], [0] * 4, [0, 0, 1, 1])
        assert (out.within, out.between, out.rho) == pytest.approx((0.0, 0.5, 1.0))

    def test_a_case_between(self):
        """Means 0.75 and 0.25, spread 0.125; within variances 1/12 and 1/12 of four answers each, noise 1/48."""
        low, high = 0.25 + np.array([-1, 1, -1, 1]) / 4, 0.75 + np.array([-1, 1, -1, 1]) / 4
        out = thought_answer([*high, *low], [0] * 8, [0] * 4 + [1] * 4)
        assert (out.within, out.between) == pytest.approx((1 / 12, 0.125 - 1 / 48))
        assert out.rho == pytest.approx((0.125 - 1 / 48) / 0.125)

    def test_it_estimates_the_variances_the_rewards_were_drawn_with(self):
        rng = np.random.default_rng(1)
        prompts, k, m = 400, 8, 8
        values = rng.normal(0, 0.5, (prompts, k, 1))
        rewards = values + rng.normal(0, 1.0, (prompts, k, m))
        ids = np.arange(prompts * k)
        out = thought_answer(rewards.ravel(), np.repeat(np.arange(prompts), k * m), np.repeat(ids, m))
        assert out.between == pytest.approx(0.25, rel=0.1)
        assert out.within == pytest.approx(1.0, rel=0.05)

    def test_unclosed_thoughts_count_in_no_variance(self):
        """Equal rows of one truncated completion are one sample: they would look like a perfectly reliable thought."""
        closed = thought_answer([1, 0, 0, 0], [0] * 4, [0, 0, 1, 1])
        rewards, thoughts = [1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 2, 2]
        out = thought_answer(rewards, [0] * 6, thoughts, closed=[True] * 4 + [False] * 2)
        assert (out.between, out.within, out.rho) == (closed.between, closed.within, closed.rho)
        assert out.thought[4] < 0  # but it is worth its reward, like any other

    @pytest.mark.parametrize(("rewards", "thoughts"), [([1, 0], [0, 1]), ([1, 0], [0, 0]), ([NAN] * 4, [0, 0, 1, 1])])
    def test_it_is_undefined_without_two_thoughts_of_two_answers(self, rewards, thoughts):
        assert math.isnan(thought_answer(rewards, [0] * len(rewards), thoughts).rho)

    def test_an_undefined_prompt_does_not_spoil_the_mean(self):
        rewards = [1, 1, 0, 0, 1, 0]
        out = thought_answer(rewards, [0] * 4 + [1] * 2, [0, 0, 1, 1, 2, 3])
        assert out.rho == 1.0


class TestVarianceLaw:
    """Thoughts fixed, answers drawn anew: Var(A_i) ~ 1/(M S^2) sum_j sigma_j^2 (delta_ij - 1/K - A_i A_j/(K-1))^2."""

    values = np.array([0.0, 0.3, 0.6, 1.0])
    sigmas = np.array([0.2, 0.3, 0.25, 0.2])

    def simulate(self, m: int, draws: int = 3000) -> np.ndarray:
        """(K,) variance of the thought advantages over independent draws of their M answers."""
        rng = np.random.default_rng(2)
        k = len(self.values)
        rewards = self.values[:, None] + self.sigmas[:, None] * rng.normal(size=(draws, k, m))
        # Each draw is a prompt of its own.
        return standardise(rewards.mean(axis=2).ravel(), np.repeat(np.arange(draws), k)).reshape(draws, k).var(axis=0)

    def law(self, m: int) -> np.ndarray:
        k = len(self.values)
        spread = self.values.std(ddof=1)
        a = (self.values - self.values.mean()) / spread
        weight = np.eye(k) - 1 / k - np.outer(a, a) / (k - 1)
        return (weight**2 @ self.sigmas**2) / (m * spread**2)

    def test_simulation_agrees_with_the_law_for_four_thoughts_of_sixteen_answers(self):
        assert self.simulate(16).mean() / self.law(16).mean() == pytest.approx(1.0, abs=0.1)
        assert self.simulate(16) == pytest.approx(self.law(16), rel=0.25)

    def test_more_answers_always_make_thought_advantages_steadier(self):
        variances = [self.simulate(m).mean() for m in (1, 2, 4, 8, 16)]
        assert variances == sorted(variances, reverse=True)
        assert variances[0] / variances[2] > 1.5

    def test_with_few_answers_standardising_caps_the_variance_below_the_law(self):
        noisy = TestVarianceLaw()
        noisy.sigmas = np.ones(4)
        assert noisy.simulate(1).mean() < 0.5 * noisy.law(1).mean()
