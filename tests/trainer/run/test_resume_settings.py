"""What lies in a checkpoint's state files never silently wins over the settings of the run that goes on from it."""

import dataclasses

import pytest
from peft import LoraConfig
from trainer_cases import largest_gap, logged, text_trainer, weights

SAVING = {"save_strategy": "steps", "save_steps": 1, "save_only_model": False}
SAVED = {**SAVING, "rows": 8, "max_steps": 1, "optim_args": "momentum=0.9"}


@pytest.fixture(scope="module")
def checkpoint(tiny_text, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("saved")
    text_trainer(tiny_text, folder, **SAVED).train()
    return str(folder / "checkpoint-1")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"optim_args": "momentum=0.5"}, "its optimiser has optim_args momentum=0.9, and this run's momentum=0.5"),
        ({"optim_args": None}, "its optimiser has optim_args momentum=0.9, and this run's None would have no effect"),
        ({"lr_scheduler_type": "linear"}, "its optimiser has lr_scheduler_type constant, and this run's linear would"),
        ({"lr_scheduler_kwargs": {"a": 1}}, "its optimiser has lr_scheduler_kwargs None, and this run's {'a': 1}"),
        ({"seed": 7}, "its random states are of seed 42, and this run's 7 would have no effect"),
        ({"data_seed": 7}, "its random states are of data_seed 42, and this run's 7 would have no effect"),
        ({"per_device_train_batch_size": 8}, "prompts per process and generation 1, and with this run's 2 its step is"),
        ({"gradient_accumulation_steps": 2}, "prompts per process and generation 1, and with this run's 2 its step is"),
        ({"num_iterations": 2}, "it was saved with steps per generation 1, and with this run's 2 its step is another"),
        ({"rows": 12}, "it was saved with training records 8, and with this run's 12 its step is another"),
        ({"shuffle_dataset": True}, "it was saved with shuffle_dataset False, and with this run's True its step is"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_a_state_file_holds_is_refused_with_both_values(tiny_text, tmp_path, checkpoint, changes, sentence):
    assert sentence in str(text_trainer(tiny_text, tmp_path, **SAVED | changes).resume_fault(checkpoint))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_steps": 9, "logging_steps": 7, "save_total_limit": 1, "max_grad_norm": 1.0},
        {"think_num": 1, "answer_num": 4},
        {"think_num": 1, "answer_num": 2},  # the same prompts, in smaller trees
        {"metric_for_best_model": "a/accuracy"},
    ],
)
def test_what_no_state_file_holds_may_change(tiny_text, tmp_path, checkpoint, changes):
    assert text_trainer(tiny_text, tmp_path, **SAVED | changes).resume_fault(checkpoint) is None


def test_the_same_prompts_per_step_in_other_micro_batches_are_the_same_data(tiny_text, tmp_path):
    """Two trees in one micro-batch, and one tree in each of two: the run ends with the same weights."""
    changes = {**SAVING, "rows": 8, "max_steps": 3}
    one, two = {"per_device_train_batch_size": 8}, {"gradient_accumulation_steps": 2}
    whole = text_trainer(tiny_text, tmp_path / "whole", **changes, **one)
    whole.train()
    again = text_trainer(tiny_text, tmp_path / "again", **changes, **two)
    assert again.resume_fault(str(tmp_path / "whole" / "checkpoint-1")) is None
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert [entry["epoch"] for entry in again.state.log_history if "loss" in entry] == [0.25, 0.5, 0.75]
    assert 0 < largest_gap(weights(whole), weights(again)) < 1e-4


def test_another_metric_is_not_compared_with_the_best_value_so_far(tiny_text, tmp_path):
    best = {"metric_for_best_model": "a/accuracy"}
    text_trainer(tiny_text, tmp_path / "saved", **SAVED, **best).train()
    other = text_trainer(tiny_text, tmp_path, **SAVED, metric_for_best_model="a/format")
    assert "its best evaluation is by metric_for_best_model a/accuracy, and this run's a/format cannot be" in (
        other.resume_fault(str(tmp_path / "saved" / "checkpoint-1"))
    )


@pytest.mark.parametrize("changes", [{}, {"warmup_steps": 2}], ids=["linear", "warm-up"])
def test_a_longer_run_follows_its_own_schedule_from_its_first_step(tiny_text, tmp_path, changes):
    """The optimizer's file holds 0, the rate at the end of the shorter run's schedule."""
    linear = {**SAVING, "rows": 8, "lr_scheduler_type": "linear", "learning_rate": 0.01}
    text_trainer(tiny_text, tmp_path, max_steps=2, **linear).train()
    longer = text_trainer(tiny_text, tmp_path, max_steps=5, **linear, **changes)
    longer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    whole = text_trainer(tiny_text, tmp_path / "whole", max_steps=5, **linear, **changes)
    whole.train()
    rates = logged(longer, "learning_rate")[2:]
    assert rates == logged(whole, "learning_rate")[2:]
    assert rates[0] == pytest.approx(0.006 if not changes else 0.01)


def test_intervals_are_those_of_the_run_that_goes_on(tiny_text, tmp_path):
    text_trainer(tiny_text, tmp_path, rows=8, max_steps=1, **SAVING).train()
    changes = SAVING | {"save_steps": 2, "logging_steps": 4}
    longer = text_trainer(tiny_text, tmp_path, rows=8, max_steps=5, **changes)
    longer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        f"checkpoint-{step}" for step in (1, 2, 4, 5)
    ]
    assert [entry["step"] for entry in longer.state.log_history if "loss" in entry] == [1, 4]


def test_modules_trained_beside_the_adapter_are_part_of_it(tiny_text, tmp_path):
    module, model, _ = tiny_text
    lora = LoraConfig(r=4, target_modules=module.lora_target_modules(model), task_type="CAUSAL_LM")
    whole = dataclasses.replace(lora, modules_to_save=["norm"])
    text_trainer(tiny_text, tmp_path / "saved", peft_config=whole, **SAVING).train()
    without = text_trainer(tiny_text, tmp_path, peft_config=lora, **SAVING)
    assert without.resume_fault(str(tmp_path / "saved" / "checkpoint-1")) == (
        "its adapter trains whole other modules than this run's (lora_modules_to_save)"
    )
