"""Faults inside a step, reported in terms of the run: out of memory, non-finite numbers, rewards that hang."""

import contextlib
import re
import time

import pytest
import torch
from reward_cases import make_task, score
from trainer_cases import largest_gap, logged, text_trainer, weights

from task.rewards.own_rewards import checked_rewards
from task.rewards.time_limit import RewardTimeout, time_limit
from trainer.logs.progress import warn_of_useless_rollouts
from trainer.run.faults import StepError


class TestMemory:
    def out_of_memory(self, *args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines")

    def test_in_a_micro_batch_it_names_leaves_slots_records_and_knobs(self, tiny_text, tmp_path, monkeypatch):
        trainer = text_trainer(tiny_text, tmp_path)
        monkeypatch.setattr(trainer.accelerator, "backward", self.out_of_memory)
        with pytest.raises(StepError) as caught:
            trainer.train()
        sentence = str(caught.value)
        slots = int(re.search(r"4 leaves in (\d+) token slots, records row-0 \(CUDA out of memory", sentence)[1])
        assert slots == trainer.forward.slots([0, 1, 2, 3]) > 20
        for knob in (f"max_slots to about {slots // 2}", "gradient_checkpointing", "per_device_train_batch_size"):
            assert knob in sentence
        assert "more lines" not in sentence

    def test_in_a_rollout_it_names_the_rollouts_knobs(self, tiny_text, tmp_path, monkeypatch):
        trainer = text_trainer(tiny_text, tmp_path)
        monkeypatch.setattr(trainer, "_grow", self.out_of_memory)
        trainer.rollout_func = self.out_of_memory
        with pytest.raises(
            StepError, match=r"out of memory while sampling 4 leaves per prompt .*lower rollout_prompts"
        ):
            trainer.train()

    @pytest.mark.parametrize(
        "words",
        ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"],
    )
    def test_a_gpu_full_outside_of_pytorchs_own_allocator(self, tiny_text, tmp_path, monkeypatch, words):
        def fail(*args, **kwargs):
            raise RuntimeError(words)

        trainer = text_trainer(tiny_text, tmp_path)
        monkeypatch.setattr(trainer.accelerator, "backward", fail)
        with pytest.raises(StepError, match="out of memory in a micro-batch of 4 leaves"):
            trainer.train()

    def test_another_runtime_error_stays_itself(self, tiny_text, tmp_path, monkeypatch):
        def fail(*args, **kwargs):
            raise RuntimeError("shapes differ")

        trainer = text_trainer(tiny_text, tmp_path)
        monkeypatch.setattr(trainer.accelerator, "backward", fail)
        with pytest.raises(RuntimeError, match=r"^shapes differ$"):
            trainer.train()


class TestNumbers:
    def trainer(self, tiny_text, folder, monkeypatch, broken_step, **changes):
        """Its loss is NaN in one micro-step."""
        trainer = text_trainer(tiny_text, folder, max_steps=3, **changes)
        original = trainer._get_per_token_logps_and_entropies

        def logps(*args, **kwargs):
            values, entropies, aux = original(*args, **kwargs)
            return (values * torch.nan if trainer._step == broken_step else values), entropies, aux

        monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", logps)
        return trainer

    def test_a_loss_that_is_none_stops_and_names_the_records(self, tiny_text, tmp_path, monkeypatch):
        trainer = self.trainer(tiny_text, tmp_path, monkeypatch, broken_step=1)
        with pytest.raises(
            StepError, match=r"step 2, process 0: the loss is nan on the records row-1.*on_non_finite=skip"
        ):
            trainer.train()

    def test_another_processs_loss_is_not_blamed_on_the_records_here(self, tiny_text, tmp_path, monkeypatch):
        trainer = text_trainer(tiny_text, tmp_path)
        original = trainer._compute_loss

        def somewhere_else(*args):
            monkeypatch.setattr(trainer.processes, "largest", lambda count: 1)
            return original(*args)

        monkeypatch.setattr(trainer, "_compute_loss", somewhere_else)
        with pytest.raises(StepError, match=r"step 1, process 0: the loss of another process is not finite; nothing"):
            trainer.train()

    def test_or_is_left_out_and_counted(self, tiny_text, tmp_path, monkeypatch, capsys):
        trainer = self.trainer(tiny_text, tmp_path, monkeypatch, broken_step=0, on_non_finite="skip")
        before = weights(trainer)
        trainer.args.max_steps = 1
        trainer.train()
        assert largest_gap(before, weights(trainer)) == 0.0
        assert logged(trainer, "faults/non_finite") == [1.0]
        assert "step 1, process 0: the loss is nan on the records row-0: skipped" in capsys.readouterr().out

    @pytest.mark.parametrize("layout", [{"zero_stage": 3}, {"zero_stage": None, "fsdp": True}], ids=["zero3", "fsdp"])
    def test_sharded_weights_stop_in_any_case(self, tiny_text, tmp_path, monkeypatch, layout):
        trainer = self.trainer(tiny_text, tmp_path, monkeypatch, broken_step=0, on_non_finite="skip")
        monkeypatch.setattr(trainer, "layout", lambda: layout)
        with pytest.raises(StepError, match="on the records row-0, and it cannot be skipped with sharded weights"):
            trainer.train()

    def test_training_goes_on_after_it(self, tiny_text, tmp_path, monkeypatch):
        trainer = self.trainer(tiny_text, tmp_path, monkeypatch, broken_step=0, on_non_finite="skip")
        before = weights(trainer)
        trainer.train()
        after = weights(trainer)
        assert largest_gap(before, after) > 0 and all(torch.isfinite(weight).all() for weight in after.values())

    @pytest.mark.parametrize("rule", ["stop", "skip"])
    def test_a_gradient_that_is_none(self, tiny_text, tmp_path, monkeypatch, rule):
        trainer = text_trainer(tiny_text, tmp_path, on_non_finite=rule)
        before, original = weights(trainer), trainer.accelerator.backward

        def backward(loss, **kwargs):
            original(loss, **kwargs)
            next(p for p in trainer.model.parameters() if p.grad is not None).grad.view(-1)[0] = torch.inf

        monkeypatch.setattr(trainer.accelerator, "backward", backward)
        if rule == "stop":
            with pytest.raises(StepError, match="a gradient is not finite, the last records are row-0"):
                trainer.train()
        else:
            trainer.train()
            assert logged(trainer, "faults/non_finite") == [0.5]  # mean of the loss's 0 and the gradient's 1
        assert largest_gap(before, weights(trainer)) == 0.0


class TestTime:
    def test_the_limit_stops_a_sleep_a_loop_and_code_that_swallows_exceptions(self):
        def swallow():
            while True:
                with contextlib.suppress(Exception):
                    time.sleep(5)

        def spin():
            while True:
                pass

        for hang in (lambda: time.sleep(5), spin, swallow):
            start = time.monotonic()
            with pytest.raises(RewardTimeout), time_limit(0.05):
                hang()
            assert time.monotonic() - start < 4

    def test_in_time_nothing_happens(self):
        with time_limit(0.2):
            value = 1
        time.sleep(0.25)
        with time_limit(None):
            assert value == 1

    def test_a_task_that_hangs_abstains_on_that_completion_alone(self, capsys):
        def slow(completion, sol, **kw):
            if completion == "hang":
                time.sleep(5)
            return 1.0

        counts = {}
        found = score(make_task(accuracy=slow), ["a", "hang", "b"], timeout=0.1, log_metric=counts.__setitem__)
        assert found == [1.0, None, 1.0]
        assert counts["rewards/accuracy_reward/timeout"] == 1.0 and counts["rewards/accuracy_reward/failed"] == 0.0
        assert "no answer within reward_timeout=0.1 s" in capsys.readouterr().err

    def test_a_users_own_function_abstains_on_all(self, capsys):
        def hang(completions, **kwargs):
            time.sleep(5)

        (checked,) = checked_rewards(hang, timeout=0.1)
        assert checked(prompts=["p"] * 2, completions=["a", "b"]) == [None, None]
        assert "reward function hang: no answer within reward_timeout=0.1 s" in capsys.readouterr().err

    def test_a_reward_that_asks_python_to_end_is_a_reward_that_failed(self, capsys):
        def leave(completion, sol, **kw):
            raise SystemExit(3)

        assert score(make_task(accuracy=leave), ["a"]) == [None]
        assert "SystemExit" in capsys.readouterr().err


class TestNothingGrown:
    def test_a_dead_tool_is_named_and_a_working_run_is_not_warned(self, recwarn):
        warn_of_useless_rollouts({"rollout/failed_share": 0.9, "tool/errors/refused": 3.0}, None)
        assert not recwarn
        errors = {"tool/errors/timeout": 0.5, "tool/errors/refused": 3.0}
        with pytest.warns(UserWarning, match=r"grown for 100% of the prompts, most often by tool/errors/refused"):
            warn_of_useless_rollouts({"rollout/failed_share": 1.0} | errors, None)
        with pytest.warns(UserWarning, match=r"nothing could be grown for 95% of the prompts: check their media"):
            warn_of_useless_rollouts({"rollout/failed_share": 0.95, "tool/errors/timeout": 0.0}, None)
