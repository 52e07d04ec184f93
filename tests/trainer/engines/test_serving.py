"""Runs on a serving engine: weights are sent at each generation, the first answers are checked, TRL starts nothing."""

import copy
import importlib.util

import pytest
import torch
import trl.trainer.grpo_trainer as trl_trainer
from dense_requests import DenseRequests
from peft import LoraConfig, get_peft_model
from trainer_cases import text_trainer

from task.errors import UserError
from trainer import grpo_ma_trainer
from trainer.engines import serving
from trainer.engines.serving import Serving, sends_adapter
from trainer.engines.weights import check_adapters, whole_weights


@pytest.fixture
def run(tiny_text, tmp_path, monkeypatch):
    """A trainer with use_vllm on `DenseRequests`, as if vLLM were installed; TRL may not build its own engine."""

    def built(*args, **kwargs):
        raise AssertionError("TRL built its own vLLM")

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: name == "vllm" or find(name, *rest))
    monkeypatch.setattr(trl_trainer, "VLLMGeneration", built)
    monkeypatch.setattr(
        grpo_ma_trainer, "serving_of", lambda trainer: Serving(DenseRequests(tiny_text), torch.float32, shown=True)
    )
    return lambda **changes: text_trainer(tiny_text, tmp_path, rows=8, use_vllm=True, **changes)


def test_a_run_samples_from_the_weights_of_each_step(run, capfd):
    trainer = run(max_steps=3, learning_rate=1.0)
    assert trainer.args.use_vllm and not trainer.use_vllm
    trainer.train()
    assert capfd.readouterr().out.count("vLLM against the policy's own forward pass") == 1
    requests = trainer.serving.requests
    assert requests.version == 3 and not requests.awake and not requests.running
    for entry in trainer.state.log_history[:3]:
        assert entry["vllm/sent_tokens"] == entry["vllm/cached_tokens"] + entry["vllm/computed_tokens"]
        gaps = [value for name, value in entry.items() if "policy_gap" in name]
        assert gaps and max(gaps) < 1e-4


def test_weights_that_did_not_arrive_stop_the_run(run, monkeypatch):
    def changed(model):
        return [(name, weight * 1.1 if "o_proj" in name else weight) for name, weight in whole_weights(model)]

    monkeypatch.setattr(serving, "whole_weights", changed)
    with pytest.raises(UserError, match="log-probs of vLLM and of the policy differ by"):
        run(max_steps=1).train()


@pytest.fixture
def adapted(tiny_text):
    def call(**settings):
        module, model, _ = tiny_text
        settings = {"r": 4, "target_modules": module.lora_target_modules(model), "init_lora_weights": False} | settings
        return get_peft_model(copy.deepcopy(model), LoraConfig(**settings))

    return call


def test_adapters_are_added_to_what_is_sent_and_to_nothing_else(tiny_text, adapted):
    """Every weight of the checkpoint once, the tied output layer too; the sums are those of peft's own merge."""
    model = adapted()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    sent = dict(whole_weights(model))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert sent.keys() == tiny_text[1].state_dict().keys()
    merged = copy.deepcopy(model).merge_and_unload().state_dict()
    for name, weight in sent.items():
        torch.testing.assert_close(weight, merged[name], atol=1e-6, rtol=0)
    with model.disable_adapter():
        assert all(torch.equal(weight, tiny_text[1].state_dict()[name]) for name, weight in whole_weights(model))


def test_a_module_that_is_trained_as_a_copy_is_sent_in_place_of_the_original(tiny_text, adapted):
    model = adapted(modules_to_save=["norm"])
    with torch.no_grad():
        model.get_parameter("base_model.model.model.norm.modules_to_save.default.weight").fill_(3.0)
    sent = dict(whole_weights(model))
    assert sent.keys() == tiny_text[1].state_dict().keys()
    assert sent["model.norm.weight"].eq(3.0).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"use_dora": True}, "is DoRA or has a bias of its own: leave use_vllm out"),
        ({"lora_bias": True}, "is DoRA or has a bias of its own: leave use_vllm out"),
        ({"target_modules": ["embed_tokens"]}, "embed_tokens .Embedding. cannot be sent to vLLM: leave use_vllm out"),
    ],
)
def test_adapters_that_are_no_sum_of_matrices_are_refused(adapted, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        check_adapters(adapted(**settings))


def test_in_low_precision_the_adapter_is_sent_alone(tiny_text, adapted):
    model = adapted()
    assert sends_adapter(model, torch.bfloat16) and not sends_adapter(model, torch.float32)
    assert not sends_adapter(tiny_text[1], torch.bfloat16)
