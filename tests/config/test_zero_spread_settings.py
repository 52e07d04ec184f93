"""Settings for prompts without signal: without effect, out of range or with another method they are refused."""

import pytest
from trainer_cases import settings

from task.errors import UserError

GROW = {"on_zero_spread": "grow", "gradient_accumulation_steps": 4}
REDRAW = {"on_zero_spread": "redraw"}
CHAINS = {"num_generations": 4}
REFUSED = [
    ({"on_zero_spread": "drop"}, "choose one of keep, redraw, grow"),
    ({"max_redraws": 2}, "max_redraws=2 would have no effect with on_zero_spread=keep"),
    ({"keep_between": [0.1, 0.9]}, r"keep_between=\[0.1, 0.9\] would have no effect with on_zero_spread=keep"),
    ({"grow_budget": 0.5, **REDRAW}, "grow_budget=0.5 would have no effect with on_zero_spread=redraw"),
    ({"max_redraws": 2, **GROW}, "set on_zero_spread to redraw"),
    ({"max_redraws": 0, **REDRAW}, "max_redraws=0 must be at least 1"),
    ({"keep_between": [0.9, 0.1], **REDRAW}, "the lower one first"),
    ({"keep_between": [0.1], **REDRAW}, "two finite numbers"),
    ({"keep_between": [float("nan"), 0.5], **REDRAW}, "two finite numbers"),
    (GROW | {"grow_budget": 0.0}, "above 0 and at most 1"),
    (GROW | {"grow_budget": 1.5}, "above 0 and at most 1"),
    (GROW | {"grow_budget": 0.05}, "grow_budget=0.05 of the 16 leaves of a generation is less than one answer"),
    (GROW | {"answer_num": 1, "think_num": 4}, "answer_num=1 is plain GRPO"),
    (REDRAW | {"method": "reinforce_plus_plus"} | CHAINS, "set reward_baseline to prompt"),
    *(
        ({"method": method, "on_zero_spread": "grow"}, f"the rollouts of {method} have no thoughts with answers")
        for method in ("grpo", "tree_adv", "tree_grpo", "gigpo", "parent_difference")
    ),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_a_setting_is_refused_in_a_sentence(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        settings(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        GROW,
        REDRAW | {"max_redraws": 5, "keep_between": [0.01, 0.99]},
        REDRAW | {"method": "tree_grpo"},
        REDRAW | CHAINS | {"method": "reinforce_plus_plus", "reward_baseline": "prompt"},
    ],
)
def test_a_setting_is_taken(tmp_path, changes):
    assert settings(tmp_path, **changes).on_zero_spread == changes["on_zero_spread"]
