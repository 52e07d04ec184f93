"""Model arguments: adapters without effect are refused, quantised weights compute in the run's dtype."""

import pytest

from config.model_config import GRPOModelConfig


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lora_target_parameters": ["experts"]}, r"lora_target_parameters=\['experts'\] is not supported"),
        ({"lora_task_type": "SEQ_CLS"}, "lora_task_type='SEQ_CLS' is not supported"),
        ({"use_peft": False, "adapter_path": "runs/a"}, "use_peft=False trains all weights, but adapter_path names"),
        ({"freeze_vision": False}, "freeze_vision=False has no effect while LoRA is on the language model alone"),
        ({"load_in_4bit": True, "use_peft": False}, "load_in_4bit=True quantises the weights that"),
        ({"lora_alpha": 0}, "lora_alpha=0 must be above 0"),
        ({"lora_dropout": 1.0}, "lora_dropout=1.0 must be at least 0 and below 1"),
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
