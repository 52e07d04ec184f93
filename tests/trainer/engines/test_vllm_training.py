"""Runs with use_vllm: TRL starts no engine, the first rollouts are checked, and faults stop the run with a sentence."""

import json

import pytest
import torch
from trainer_cases import demo_rows, length_reward, logged, settings, text_trainer, vlm_trainer

pytest.importorskip("vllm")

from task.errors import UserError
from trainer.engines import serving


@pytest.fixture
def run(tiny_text, tmp_path, monkeypatch):
    """A trainer with use_vllm, in which TRL's own engine may not be built."""
    import trl.trainer.grpo_trainer as trl_trainer

    def built(*args, **kwargs):
        raise AssertionError("TRL built its own vLLM")

    monkeypatch.setattr(trl_trainer, "VLLMGeneration", built)

    def call(**changes):
        return text_trainer(
            tiny_text, tmp_path / str(len(list(tmp_path.iterdir()))), rows=8, use_vllm=True,
            vllm_gpu_memory_utilization=0.1, max_prompt_length=200, **changes,
        )  # fmt: skip

    return call


def test_a_run_trains_on_vllm_and_says_how_far_it_is_from_the_policy(run, capfd):
    trainer = run(max_steps=3)
    assert trainer.args.use_vllm and not trainer.use_vllm
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    trainer.train()
    shown = capfd.readouterr().out
    assert shown.count("vLLM against the policy's own forward pass") == 1
    assert any(not torch.equal(weight, dict(trainer.model.named_parameters())[name]) for name, weight in before.items())
    steps = [entry for entry in trainer.state.log_history if "vllm/cached_share" in entry]
    assert len(steps) == 3
    for entry in steps:
        assert entry["vllm/sent_tokens"] == entry["vllm/cached_tokens"] + entry["vllm/computed_tokens"]
        assert entry.get("vllm/found_share", 1) >= 1  # none if prompts are shorter than a block
        gaps = [value for name, value in entry.items() if "policy_gap" in name]
        assert gaps and max(gaps) < 1e-4  # after each sync, over all tokens


def test_weights_that_did_not_arrive_stop_the_run(run, monkeypatch):
    def half(model):
        return [(name, weight * 1.1 if "o_proj" in name else weight) for name, weight in whole(model)]

    whole = serving.whole_weights
    monkeypatch.setattr(serving, "whole_weights", half)
    with pytest.raises(UserError, match="log-probs of vLLM and of the policy differ by"):
        run(max_steps=1).train()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["redraw", "grow"])
def test_prompts_without_signal_are_replaced_or_get_further_answers(tiny_vlm, tmp_path, mode):
    """Both are sampled by the same engine, in the same generation, with log-probs that training confirms."""
    rows = demo_rows(6)
    flat = json.loads(rows[0]["record"])["id"]

    def reward(completions, record, **kwargs):
        values = length_reward(completions)
        return [0.0 if one["id"] == flat else value for one, value in zip(record, values, strict=True)]

    changes = {"on_zero_spread": mode} | ({"grow_budget": 0.5} if mode == "grow" else {})
    changes |= {"max_thought_length": 80, "max_answer_length": 16, "gradient_accumulation_steps": 2}
    changes |= {"use_vllm": True, "vllm_gpu_memory_utilization": 0.1, "max_prompt_length": 600}
    trainer = vlm_trainer(tiny_vlm, tmp_path, rows=rows, reward=reward, **changes)
    trainer.train()
    names = [tree.prompt_id for tree in trainer.generation.rollout.trees]
    assert logged(trainer, f"{mode}/share") == [0.5]
    if mode == "redraw":
        assert flat not in names and len(names) == 2
    else:
        assert flat in names and len(trainer.generation.training.scored.row_tree) == 8 + 4
    assert 0 < max(logged(trainer, "sampling/policy_gap_max")) < 1e-3


def test_settings_are_taken_from_the_run(tmp_path):
    assert settings(tmp_path, use_vllm=True, vllm_max_model_length=300).vllm_max_model_length == 300
