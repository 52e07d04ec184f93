"""The cases of test_gpu.py on a CPU, in small: their code is run where there is no GPU, and CPUs train right."""

import math

import pytest
import torch
from device_cases import (
    checkpointing_gap,
    forward_backward,
    gap_to_dense,
    grow_watched,
    small,
    text_model,
    text_prompt,
    train_two_steps,
    tree_rows,
)


@pytest.mark.parametrize("head_size", [32, 128])
def test_packed_and_dense_agree(one_thread, head_size):
    largest, _ = gap_to_dense("cpu", torch.float32, head_size)
    assert largest < 1e-5


def test_low_precision_differs_by_rounding(one_thread):
    largest, mean = gap_to_dense("cpu", torch.bfloat16, 32)
    assert mean < 0.02
    assert largest < 0.5


def test_checkpointing_draws_dropout_again(one_thread):
    assert checkpointing_gap("cpu", torch.float32) < 1e-5


def test_a_packed_pass_with_checkpointing_and_dropout_in_bfloat16(one_thread):
    found = forward_backward(
        *text_model("cpu", torch.bfloat16, 32, checkpointing=True), text_prompt(40), tree_rows(4, 4, 60, 20)
    )
    assert found.slots == 39 + 4 * 60 + 16 * 20
    assert 0 < found.gradient < math.inf


def test_every_decoding_step_is_watched(tiny_vlm):
    seen = []
    module, model, processor = tiny_vlm
    assert grow_watched(module, model, processor, 12, seen.append) == len(seen) // 2 > 12


def test_two_steps_with_an_adapter_and_a_frozen_tower(tmp_path, one_thread):
    found = train_two_steps(*small(), tmp_path)
    assert found["steps"] == 2
    assert len(found["grad_norms"]) == 2
    assert all(0 < norm < math.inf for norm in found["grad_norms"])
