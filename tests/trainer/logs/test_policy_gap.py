"""The gap between sampling and training: mean, 99.9th percentile and maximum, per part, over all micro-batches."""

import math

import numpy as np
import pytest
import torch
from peft import LoraConfig
from trainer_cases import script, text_trainer, thought_tree

from trainer.logs.policy_gap import gap_metrics, policy_gaps

THOUGHTS, ANSWERS = [[301, 302], [303]], [[[304], [305, 306]], [[307], [308]]]


def test_parts_have_their_own_gaps_over_their_own_tokens():
    inputs = {
        "sampling_per_token_logps": torch.tensor([[-1.0, -2.0, -3.0, math.nan, 0.0], [-1.0, -1.0, -1.0, 0.0, 0.0]]),
        "completion_mask": torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]),
        "tool_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0.5, 1, 1]]),
        "thought_mask": torch.tensor([[1, 1, 0, 0, 0], [1, 1, 0, 0, 0]]),
    }
    old = torch.tensor([[-1.5, -2.0, -1.0, -9.0, -9.0], [-1.0, -9.0, -1.25, -9.0, -9.0]])
    found = policy_gaps(old, inputs, split=True)
    expected = {"sampling": [0.5, 0.0, 2.0, 0.0, 0.25], "thought": [0.5, 0.0, 0.0], "answer": [2.0, 0.25]}
    assert {part: gaps.tolist() for part, gaps in found.items()} == expected
    assert policy_gaps(old, inputs, split=False).keys() == {"sampling"}


def test_values_are_over_all_micro_batches_and_processes():
    gaps = np.random.default_rng(0).exponential(size=5000).astype(np.float32)
    found = gap_metrics([{"sampling": gaps[:100], "thought": gaps[:0]}, {"sampling": gaps[100:]}])
    expected = {
        "sampling/policy_gap": gaps.mean(),
        "sampling/policy_gap_p999": np.quantile(gaps, 0.999),
        "sampling/policy_gap_max": gaps.max(),
    }
    assert found == pytest.approx(expected)


def test_a_run_logs_them_with_the_step_that_trained_on_these_tokens(tiny_text, tmp_path, monkeypatch):
    """Log-probs are written down as -1, so that the gap of a token is its log-prob in training plus 1."""
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, THOUGHTS, ANSWERS))
    trainer = text_trainer(tiny_text, tmp_path, rows=2, gradient_accumulation_steps=2, learning_rate=0.0)
    trainer.train()
    (entry, *_) = trainer.state.log_history
    thoughts, answers = [], []
    for prompt in trainer.generation.rollout.prompts:
        for thought, below in zip(THOUGHTS, ANSWERS, strict=True):
            for answer in below:
                ids = torch.tensor([prompt.ids + thought + answer])
                logps = trainer.model(input_ids=ids).logits[0, len(prompt.ids) - 1 : -1].log_softmax(-1)
                gaps = (logps.gather(1, ids[0, len(prompt.ids) :, None])[:, 0] + 1).abs().tolist()
                thoughts += gaps[: len(thought)]
                answers += gaps[len(thought) :]
    for part, gaps in {"sampling": thoughts + answers, "thought": thoughts, "answer": answers}.items():
        assert entry[f"{part}/policy_gap"] == pytest.approx(np.mean(gaps), abs=1e-4)
        assert entry[f"{part}/policy_gap_p999"] == pytest.approx(np.quantile(gaps, 0.999), abs=1e-4)
        assert entry[f"{part}/policy_gap_max"] == pytest.approx(np.max(gaps), abs=1e-4)


@pytest.mark.parametrize(("rate", "said"), [(0.0, False), (0.05, True)])
def test_a_run_with_dropout_says_that_the_gap_contains_it(tiny_text, tmp_path, capsys, rate, said):
    lora = LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=rate, task_type="CAUSAL_LM")
    text_trainer(tiny_text, tmp_path, peft_config=lora)
    assert ("dropout of 0.05 is on in training" in capsys.readouterr().out) == said
