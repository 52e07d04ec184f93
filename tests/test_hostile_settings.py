"""Settings nobody should train with, and recipes nobody should write: one sentence each, before any work."""

import pytest

from config.grpo_config import GRPOConfig
from config.model_config import GRPOModelConfig
from config.parser import RecipeParser
from config.script_arguments import GRPOScriptArguments
from task.parsing.answers import thought_tags

NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learning_rate": NAN}, "learning_rate=nan must be a finite number of at least 0"),
        ({"learning_rate": float("inf")}, "learning_rate=inf must be a finite number"),
        ({"beta": NAN}, "beta=nan must be a finite number"),
        ({"beta": -1.0}, "beta=-1.0 must be a finite number of at least 0"),
        ({"answer_warmup_steps": -3}, "answer_warmup_steps=-3 must be a finite number of at least 0"),
        ({"temperature": NAN}, "temperature=nan must be above 0"),
        ({"top_k": -1}, "top_k is -1: it must be 0 or more"),
        ({"top_p": 1.5}, "top_p is 1.5: it must be above 0 and at most 1"),
        ({"min_p": 2.0}, "min_p is 2.0: it must be between 0 and 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0: it must be above 0"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0 must be at least 1"),
        ({"steps_per_generation": 0}, "steps_per_generation=0 must be at least 1"),
        ({"num_iterations": 0}, "num_iterations=0 must be at least 1"),
        ({"max_steps": 0}, "give no step at all"),
        ({"num_train_epochs": 0}, "max_steps=-1 and num_train_epochs=0 give no step at all"),
        ({"thought_end": "</answer>"}, "must be a closing tag such as </think>, other than </answer>"),
        ({"thought_end": "</a b>"}, "must be a closing tag"),
        ({"thought_end": "</a></b>"}, "must be a closing tag"),
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
        ("chat_template_kwargs", {"enable_thinking": False}),
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


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lora_target_parameters": ["experts"]}, r"lora_target_parameters=\['experts'\] is not supported"),
        ({"lora_task_type": "SEQ_CLS"}, "lora_task_type='SEQ_CLS' is not supported"),
        ({"use_peft": False, "adapter_path": "runs/a"}, "use_peft=False trains all weights, but adapter_path names"),
        ({"freeze_vision": False}, "freeze_vision=False opens nothing while LoRA sits on the language model alone"),
        ({"lora_alpha": 0}, "lora_alpha=0 must be above 0"),
        ({"lora_dropout": 1.0}, "lora_dropout=1.0 must be from 0 to below 1"),
        ({"lora_dropout": -0.1}, "lora_dropout=-0.1 must be"),
    ],
)
def test_an_adapter_that_would_do_nothing(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        GRPOModelConfig(**changes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_quantised_weights_compute_in_the_dtype_of_the_run(dtype):
    import torch

    settings = GRPOModelConfig(load_in_4bit=True).quantization(dtype)
    assert settings.bnb_4bit_compute_dtype == getattr(torch, dtype)
    assert GRPOModelConfig().quantization(dtype) is None


@pytest.mark.parametrize("tag", ["</think>", "</analysis>", "</思考>", "</think-1>"])
def test_closing_tags(tag):
    assert thought_tags(tag) == (tag.replace("/", "", 1), tag)


@pytest.fixture
def parse(tmp_path, capsys):
    def call(content):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_bytes(content)
        argv = ["--config", str(recipe), "--output_dir", str(tmp_path), "--report_to", "none"]
        try:
            return RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig)).parse(argv)
        except SystemExit as end:
            return end.code, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"env: [a]\n", "env is ['a']: make it a mapping of variable names to values"),
        (b"env: hello\n", "env is 'hello': make it a mapping"),
        (b"env: {1: 2}\n", "env is {1: 2}: make it a mapping"),
        (b"\xff\xfe\x00", "cannot be read: it is not UTF-8"),
        (b"think_num: [2, 3]\n", "think_num takes one value, got a list: [2, 3]"),
    ],
)
def test_a_recipe_that_cannot_be_read_as_one(parse, content, sentence):
    status, message = parse(content)
    assert status == 2
    assert sentence in message and len(message.strip().splitlines()) == 1


def test_a_value_may_start_with_a_dash(parse):
    _, args, _ = parse(b"run_name: --mine\ntop_k: 0\n")
    assert args.run_name == "--mine"
