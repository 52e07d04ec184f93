"""One process, DDP, ZeRO-2, ZeRO-3 and FSDP2 learn the same from the same rollouts (layout_matrix.py has all cases)."""

import sys

import pytest
from paths import ROOT
from trainer_cases import text_trainer

sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from layout_cases import CASES, LAYOUTS, RATES, settings
from layout_matrix import TARGET, gaps, largest_gap, measure

NAMES = ("LoRA packed grpo", "LoRA packed dapo, 2 micro-batches", "LoRA packed grpo, thoughts over processes")
TOLD_APART = 1e-3  # weights must have moved by more, or equality would say nothing


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What one process learns in each case, and in full fine-tuning."""
    return measure("1 process", cases(), tmp_path_factory.mktemp("one"))


def cases():
    return [case for case in CASES if case.name in (*NAMES, "full packed grpo")]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["2 DDP", "2 ZeRO-2", "2 ZeRO-3", "2 FSDP2"])
def test_two_processes_learn_what_one_learns(layout, one, tmp_path):
    results = {"1 process": one, layout: measure(layout, cases(), tmp_path)}
    for name, row in gaps(results, cases()).items():
        assert max(row.values()) <= TARGET, (name, row)
    for case in cases():
        alone, both = one[case.name], results[layout][case.name]
        assert largest_gap(alone["start"], both["start"]) == 0, "new adapters differ"
        assert largest_gap(alone["start"], alone["weights"]) > TOLD_APART * (1 if case.lora else 0.1), case.name
        # every completion of the last step has the advantage it has where one process holds all of its group
        assert alone["advantages"].keys() == both["advantages"].keys(), case.name
        assert len(alone["advantages"]) >= 30
        gap = max(abs(alone["advantages"][text] - both["advantages"][text]) for text in alone["advantages"])
        assert gap < 1e-5 < max(map(abs, alone["advantages"].values())), case.name


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_trains_the_weights_that_float32_trains(layout, tmp_path):
    """Weights kept in bfloat16 would round most updates of a usual learning rate to nothing."""
    results = measure(layout, RATES, tmp_path)
    shares = []
    for case in RATES:
        start, weights = (results[case.name][name] for name in ("start", "weights"))
        moved = sum((start[name].float() != weights[name].float()).sum().item() for name in start)
        shares.append(moved / sum(weight.numel() for weight in start.values()))
    assert shares[0] > 0.99
    assert shares[1] >= 0.95 * shares[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_step_has_the_same_trees_in_every_layout(case):
    trees = {}
    for processes in (1, 2):
        found = settings(case, processes)
        rows = found["per_device_train_batch_size"] * found["gradient_accumulation_steps"] * processes
        trees[processes] = rows
        assert found["per_device_train_batch_size"] % (found["think_num"] * found["answer_num"]) == 0
    assert trees == {1: 32, 2: 32}


def test_fsdp_on_a_cpu_is_a_sentence(tiny_text, tmp_path, monkeypatch):
    """accelerate would train with plain data parallelism and say nothing."""
    trainer = text_trainer(tiny_text, tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match=r"FSDP was requested, but .* runs on cpu"):
        trainer.train()
