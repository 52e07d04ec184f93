"""Settings that meet the steps of a generation, and a loss whose default takes most of the gradient."""

import pytest
from trainer_cases import settings

from task.errors import UserError


@pytest.mark.parametrize(("steps", "iterations"), [(1, 2), (3, 2)])
def test_a_warm_up_that_ends_inside_a_generation_is_refused(tmp_path, steps, iterations):
    with pytest.raises(UserError, match=f"answer_warmup_steps={steps} ends inside a generation, which is used for 2"):
        settings(tmp_path, answer_warmup_steps=steps, num_iterations=iterations)


def test_a_warm_up_of_whole_generations_is_taken(tmp_path):
    assert settings(tmp_path, answer_warmup_steps=4, num_iterations=2).window == 2


def test_cispo_without_its_cap_is_said(tmp_path, recwarn):
    settings(tmp_path, loss_type="cispo")
    assert any("loss_type cispo caps the ratio at epsilon_high" in str(warning.message) for warning in recwarn)
    recwarn.clear()
    settings(tmp_path, loss_type="cispo", epsilon_high=5.0)
    assert not any("cispo" in str(warning.message) for warning in recwarn)
