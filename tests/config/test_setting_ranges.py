"""Training arguments out of their range, or without effect on rollout trees, are refused in one sentence."""

import pytest
from trainer_cases import settings

from config.grpo_config import GRPOConfig

NAN = float("nan")


@pytest.mark.parametrize("count", [1, 0, -4])
def test_a_group_of_one_is_refused_in_plain_words(tmp_path, count):
    with pytest.raises(ValueError, match=f"num_generations={count}: an advantage compares at least 2"):
        settings(tmp_path, method="grpo", num_generations=count, max_completion_length=8)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning_rate": NAN}, "learning_rate=nan must be a finite number of at least 0"),
        ({"learning_rate": float("inf")}, "learning_rate=inf must be a finite number"),
        ({"beta": NAN}, "beta=nan must be a finite number"),
        ({"beta": -1.0}, "beta=-1.0 must be a finite number of at least 0"),
        ({"answer_warmup_steps": -3}, "answer_warmup_steps=-3 must be at least 0"),
        ({"temperature": NAN}, "temperature=nan must be above 0"),
        ({"top_k": -1}, "top_k is -1: it must be 0 or more"),
        ({"top_p": 1.5}, "top_p is 1.5: it must be above 0 and at most 1"),
        ({"min_p": 2.0}, "min_p is 2.0: it must be between 0 and 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0: it must be above 0"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0 must be at least 1"),
        ({"steps_per_generation": 0}, "steps_per_generation=0 must be at least 1"),
        ({"num_iterations": 0}, "num_iterations=0 must be at least 1"),
        ({"max_steps": 0}, "give no training step"),
        ({"num_train_epochs": 0}, "max_steps=-1 and num_train_epochs=0 give no training step"),
        ({"thought_end": "</answer>"}, "thought_end='</answer>' cannot be told from <answer>, <answer> and </answer>"),
        ({"thought_end": ""}, "thought_end='' is white space alone"),
        ({"thought_end": "k>"}, "thought_end='k>' cannot be told from <think>"),
        ({"epsilon": -0.2}, "epsilon=-0.2 must be a finite number of at least 0"),
        ({"epsilon": NAN}, "epsilon=nan must be a finite number"),
        ({"epsilon_high": -0.1}, "epsilon_high=-0.1 must be a finite number of at least 0"),
        ({"delta": 0.5}, "delta=0.5 must be a finite number above 1"),
        ({"sapo_temperature_pos": 0.0}, "sapo_temperature_pos=0.0 must be a finite number above 0"),
        ({"temperature": float("inf")}, "temperature is inf: it must be 0 or more and finite"),
        ({"reward_weights": [1.0, NAN]}, r"reward_weights=\[1.0, nan\] must be finite numbers"),
        ({"reward_weights": [0.0, 0.0]}, "must be finite numbers, not all of them 0"),
    ],
)
def test_a_setting_out_of_its_range_is_named(tmp_path, changes, sentence):
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        GRPOConfig(output_dir=str(tmp_path), report_to="none", **changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_implementation", "static"),
        ("model_init_kwargs", {"dtype": "bfloat16"}),
        ("neftune_noise_alpha", 5.0),
        ("label_smoothing_factor", 0.1),
        ("num_generations_eval", 4),
        ("train_sampling_strategy", "group_by_length"),
        ("cast_lm_head_to_fp32", True),
        ("torch_compile", True),
        ("torch_compile_backend", "eager"),
        ("torch_compile_mode", "max-autotune"),
        ("use_transformers_paged", True),
    ],
)
def test_a_setting_of_another_recipe_that_would_do_nothing_here_is_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"^{name}=.* is not supported with rollout trees: (use|leave it out)"):
        GRPOConfig(output_dir=str(tmp_path), report_to="none", **{name: value})
