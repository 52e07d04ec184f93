"""Rollouts inside training: what is sampled, what fails, the warm-up on chains, and what generation leaves behind."""

import copy
import json

import pytest
import torch
from trainer_cases import (
    chain_tree,
    demo_rows,
    largest_gap,
    logged,
    move,
    norm,
    run,
    script,
    text_rows,
    text_trainer,
    thought_tree,
    vlm_trainer,
    weights,
)

from dataset.dataset_grpo import rows_from_records
from dataset.media import MediaError
from task.task_loader import load_tasks
from trainer.engines import generating
from trainer.prompts import PromptError


class TestSampling:
    def test_the_checkpoints_generation_config_has_no_say(self, tiny_text, tmp_path):
        """Qwen2.5-VL ships top_k 1 and a temperature of 1e-6: rollouts would be near duplicates."""
        changes = {"method": "grpo", "num_generations": 32, "max_completion_length": 12}
        trainer = text_trainer(tiny_text, tmp_path, rows=1, **changes)
        shipped = trainer.model.generation_config
        shipped.do_sample, shipped.temperature, shipped.top_k, shipped.top_p = True, 1e-6, 1, 0.001
        shipped.repetition_penalty = 1.05
        trainer.train()
        (tree,) = trainer.generation.rollout.trees
        assert len({tuple(node.token_ids) for node in tree.nodes}) > 20
        prompt = trainer.generation.rollout.prompts[0]
        with trainer._generating(temperature=0.0) as engine:
            (greedy,) = engine.grow([prompt], trainer.generation.policy, ["greedy"])
        assert len({tuple(node.token_ids) for node in greedy.nodes}) == 1

    @pytest.mark.parametrize("temperature", [1.0, 0.6])
    def test_the_policy_scores_what_was_sampled_as_the_sampler_did(self, tiny_vlm, tmp_path, temperature):
        """A temperature missing from the log-prob pass would show, and an adapter missing from the rollouts."""
        changes = {"max_steps": 3, "temperature": temperature, "max_thought_length": 16}
        trainer = vlm_trainer(tiny_vlm, tmp_path, rows=3, learning_rate=0.0, **changes)
        move(trainer.model, 0.05)
        trainer.train()
        entries = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert ["sampling/policy_gap" in entry for entry in entries] == [True, True, True]
        assert 0 <= max(logged(trainer, "sampling/policy_gap")) < 0.02

    def test_the_gap_is_of_the_policy_that_sampled_and_not_of_a_later_one(self, tiny_text, tmp_path):
        trainer = text_trainer(tiny_text, tmp_path, rows=4, max_steps=4, steps_per_generation=2)
        trainer.train()
        gaps = logged(trainer, "sampling/policy_gap_max")
        assert len(gaps) == 2 and max(gaps) < 1e-4

    def test_shaping_the_distribution_is_allowed_and_said_to_open_a_gap(self, tiny_text, tmp_path):
        with pytest.warns(UserWarning, match=r"top_k=5: .*sampling/policy_gap"):
            trainer = text_trainer(tiny_text, tmp_path, rows=2, max_steps=2, top_k=5, learning_rate=0.0)
        trainer.train()
        assert logged(trainer, "sampling/policy_gap")[0] > 1.0  # 5 of 704 almost equal tokens: log(704 / 5) = 4.9

    def test_forbidden_tokens_are_never_sampled(self, tiny_vlm, tmp_path):
        module, _, processor = tiny_vlm
        forbidden = module.forbidden_token_ids(processor)
        changes = {"method": "grpo", "num_generations": 4, "max_completion_length": 8}
        trainer = vlm_trainer(tiny_vlm, tmp_path, rows=1, lora=False, **changes)
        head = trainer.model.lm_head.weight
        with torch.no_grad():
            head[forbidden] = 50 * head[forbidden]
        trainer.train()
        sampled = {token for node in trainer.generation.rollout.trees[0].nodes for token in node.token_ids}
        assert not sampled & set(forbidden)


class TestUnclosed:
    def test_a_model_that_never_closes_trains_on_its_thoughts_and_is_told(self, tiny_text, tmp_path):
        trainer = text_trainer(tiny_text, tmp_path)
        with pytest.warns(UserWarning, match=r"100% of the thoughts never closed: raise max_thought_length \(8\)"):
            seen = run(trainer)
        rows = trainer._buffered_inputs[0]
        assert rows["completion_ids"][0].tolist() == rows["completion_ids"][1].tolist()
        assert rows["thought_mask"].equal(rows["completion_mask"])
        assert norm(seen.gradients[0]) > 0
        entry = trainer.state.log_history[0]
        assert entry["thought/unclosed_share"] == 1.0
        assert not {"variance/rho", "answer/entropy"} & entry.keys()  # of no thought, of no token

    def test_one_unclosed_thought_among_closed_ones(self, tiny_text, tmp_path, monkeypatch):
        """It takes part with its reward, has an empty answer part, and counts in no variance."""
        thoughts = [[301, 302], [303], [304, 305]]
        answers = [[[306], [307]], [[308], [309, 310]], []]
        script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, thoughts, answers))
        values = {301: [1.0, 0.0], 303: [0.0, 0.0], 304: [0.5, 0.5]}

        def reward(completion_ids, **kwargs):
            return [values[ids[0]][row % 2] for row, ids in enumerate(completion_ids)]

        trainer = text_trainer(tiny_text, tmp_path, rows=1, think_num=3, reward=reward)
        seen = run(trainer)
        rows = trainer._buffered_inputs[0]
        assert rows["answer_advantages"][4:].tolist() == pytest.approx([0.4082] * 2, abs=1e-3)
        assert rows["thought_items"] == 2 * (2 + 1 + 2)
        assert rows["answer_items"] == 1 + 1 + 1 + 2
        assert (rows["completion_mask"] - rows["thought_mask"])[4:].sum() == 0
        assert all(torch.isfinite(g).all() for g in seen.gradients[0].values())
        entry = trainer.state.log_history[0]
        # Thought values 0.5, 0 of two answers each: within (0.5 + 0) / 2, spread 0.125, its noise 0.125.
        assert (entry["variance/within"], entry["variance/between"]) == pytest.approx((0.25, 0.0))
        assert entry["thought/unclosed_share"] == pytest.approx(1 / 3)


class TestWarmUp:
    @staticmethod
    def tree(prompt_id, policy):
        """K = 2 thoughts with as many answers as the policy asks for."""
        per_thought = policy.leaves // 2
        answers = [[[320 + 10 * k + m, 350] for m in range(per_thought)] for k in range(2)]
        return thought_tree(prompt_id, [[301, 302], [303]], answers)

    def trainer(self, tiny_text, folder, monkeypatch, **changes):
        script(monkeypatch, self.tree)
        warm_up = {"answer_num": 3, "answer_warmup_steps": 1, "max_steps": 2}
        return text_trainer(tiny_text, folder, **(warm_up | changes))

    def test_first_plain_grpo_on_k_chains_then_k_times_m(self, tiny_text, tmp_path, monkeypatch):
        trainer = self.trainer(tiny_text, tmp_path, monkeypatch, per_device_train_batch_size=12)
        batches = []
        original = trainer._micro_batches
        trainer._micro_batches = lambda output: batches.append(original(output)) or batches[-1]
        trainer.train()
        (warm,), (full,) = batches
        assert [len(warm["advantages"]), len(full["advantages"])] == [2 * 2, 2 * 6]
        assert warm["advantages"].dim() == 1
        assert full["advantages"].dim() == 2
        warm_log, full_log = trainer.state.log_history[:2]
        assert "entropy" in warm_log
        assert "thought/entropy" not in warm_log
        assert "entropy" not in full_log
        assert {"thought/entropy", "answer/entropy"} <= full_log.keys()
        assert trainer.num_generations == 6

    def test_its_update_is_that_of_plain_grpo(self, tiny_text, tmp_path, monkeypatch):
        warm = run(self.trainer(tiny_text, tmp_path / "warm", monkeypatch, loss_type="dapo"))

        def as_chains(prompt_id, policy):
            tree = self.tree(prompt_id, policy)
            return chain_tree(prompt_id, [tree.tokens(leaf) for leaf in tree.leaves()])

        script(monkeypatch, as_chains)
        changes = {"method": "grpo", "num_generations": 2, "max_completion_length": 16, "loss_type": "dapo"}
        plain = run(text_trainer(tiny_text, tmp_path / "plain", **changes))
        assert norm(plain.gradients[0]) > 0.1
        assert largest_gap(warm.gradients[0], plain.gradients[0]) < 1e-5 * norm(plain.gradients[0])

    def test_micro_batches_hold_a_share_of_the_rows(self, tiny_text, tmp_path, monkeypatch):
        trainer = self.trainer(tiny_text, tmp_path, monkeypatch, gradient_accumulation_steps=2)
        sizes = []
        original = trainer._compute_loss
        trainer._compute_loss = lambda model, inputs: sizes.append(len(inputs["row_ids"])) or original(model, inputs)
        trainer.train()
        assert sizes == [2, 2, 6, 6]

    def test_it_lasts_for_all_the_steps_of_its_generations(self, tiny_text, tmp_path, monkeypatch):
        changes = {"steps_per_generation": 2, "answer_warmup_steps": 2, "max_steps": 4}
        trainer = self.trainer(tiny_text, tmp_path, monkeypatch, **changes)
        trainer.train()
        assert ["entropy" in entry for entry in trainer.state.log_history[:4]] == [True, True, False, False]


def demo_with(folder, content: bytes):
    """Two demo rows whose second picture is replaced by `content`."""
    rows = [json.loads(row["record"]) for row in demo_rows(2)]
    bad = folder / "bad.png"
    bad.write_bytes(content)
    records = [
        {"id": row["id"], "question": row["question"], "question_type": row["question_type"], "answer": row["answer"]}
        | {"image": row["images"][0] if i == 0 else str(bad)}
        for i, row in enumerate(rows)
    ]
    return rows_from_records(records, load_tasks(), on_bad_media="skip")


class TestFailedPrompts:
    def test_a_bad_picture_stops_the_run_with_its_record_and_file(self, tiny_vlm, tmp_path):
        trainer = vlm_trainer(tiny_vlm, tmp_path, rows=demo_with(tmp_path, b"no picture"), max_steps=2)
        with pytest.raises(MediaError, match=r"record 'demo-train-00001': .*bad\.png"):
            trainer.train()

    def test_skipped_its_leaves_are_masked_abstain_and_are_counted(self, tiny_vlm, tmp_path):
        asked = []

        def reward(completions, failed, **kwargs):
            asked.append(failed)
            return [float(i) for i, _ in enumerate(completions)]

        changes = {"on_bad_media": "skip", "per_device_train_batch_size": 8, "reward": reward}
        trainer = vlm_trainer(tiny_vlm, tmp_path, rows=demo_with(tmp_path, b"no picture"), **changes)
        seen = run(trainer)
        rows = trainer._buffered_inputs[0]
        assert asked == [[False] * 4 + [True] * 4]
        assert rows["tool_mask"][4:, 0].tolist() == [0] * 4
        assert (rows["completion_mask"] * rows["tool_mask"])[4:].sum() == 0
        assert rows["advantages"][4:].abs().max() == 0
        assert rows["advantages"][:4].abs().max() > 0
        assert trainer.generation.rewards[4:].isnan().all()
        assert list(trainer.encoder.skipped) == ["demo-train-00001"]
        assert logged(trainer, "rollout/failed_share") == [0.5]
        assert logged(trainer, "reward") == [1.5]
        assert all(torch.isfinite(g).all() for g in seen.gradients[0].values())

    def test_every_prompt_may_fail(self, tiny_text, tmp_path):
        trainer = text_trainer(tiny_text, tmp_path, max_prompt_length=5, on_long_prompt="skip", max_steps=2)
        before = weights(trainer)
        seen = run(trainer)
        assert seen.losses == [0.0, 0.0]
        assert logged(trainer, "rollout/failed_share") == [1.0, 1.0]
        assert all(torch.equal(weight, before[name]) for name, weight in weights(trainer).items())

    def test_a_long_prompt_stops_the_run_or_is_skipped_and_is_never_cut(self, tiny_text, tmp_path, capsys):
        rows = text_rows(2)
        long = json.loads(rows[1]["record"])
        long["messages"][0]["content"][0]["text"] *= 20
        rows = rows.map(lambda row, i: {"record": json.dumps(long)} if i == 1 else row, with_indices=True)
        length = len(text_trainer(tiny_text, tmp_path / "a", rows=rows).encoder.encode(rows[1]).ids)
        changes = {"rows": rows, "max_prompt_length": 100, "per_device_train_batch_size": 8}
        sentence = f"record row-1: the prompt has {length} tokens, over max_prompt_length=100; lower max_pixels, raise"
        with pytest.raises(PromptError, match=sentence):
            text_trainer(tiny_text, tmp_path / "b", **changes).train()
        trainer = text_trainer(tiny_text, tmp_path / "c", on_long_prompt="skip", **changes)
        trainer.train()
        assert f"skipped: {sentence}" in capsys.readouterr().out
        assert trainer.generation.rollout.failed == [False, True]


class TestWhatGenerationLeavesBehind:
    @pytest.mark.parametrize("fails", [False, True])
    def test_train_mode_checkpointing_cache_and_weights_are_as_before(self, tiny_vlm, tmp_path, monkeypatch, fails):
        trainer = vlm_trainer(tiny_vlm, tmp_path, rows=2, gradient_checkpointing=True)
        for name, weight in trainer.model.named_parameters():
            if "lora_B" in name:
                weight.data.normal_()
        seen = []

        class Engine(generating.TransformersEngine):
            def grow(self, *args):
                layers = [m for m in self.model.modules() if getattr(m, "gradient_checkpointing", False)]
                seen.append((self.model.training, self.model.is_gradient_checkpointing, len(layers)))
                if fails:
                    raise RuntimeError("a fault in the model")
                return super().grow(*args)

        monkeypatch.setattr(generating, "TransformersEngine", Engine)
        before, cache = weights(trainer), trainer.model.config.get_text_config().use_cache
        trainer.model.train()
        trainer.args.learning_rate = 0.0
        if fails:
            with pytest.raises(RuntimeError, match="a fault in the model"):
                trainer.train()
        else:
            trainer.train()
        assert seen == [(False, False, 0)]
        assert trainer.model.training
        assert trainer.model.is_gradient_checkpointing
        assert trainer.model.config.get_text_config().use_cache == cache
        assert all(torch.equal(weight, before[name]) for name, weight in weights(trainer).items())

    def test_rollouts_are_the_same_with_and_without_checkpointing(self, tiny_vlm, tmp_path):
        grown = []
        for checkpointing in (False, True):
            trainer = vlm_trainer(tiny_vlm, tmp_path / str(checkpointing), rows=1, gradient_checkpointing=checkpointing)
            trainer.train()
            grown.append([node.token_ids for node in trainer.generation.rollout.trees[0].nodes])
        assert grown[0] == grown[1]

    def test_log_probs_do_not_depend_on_what_was_generated_last(self, tiny_vlm, tmp_path):
        """The model remembers position offsets of its last generation; explicit positions make that harmless."""
        trainer = vlm_trainer(tiny_vlm, tmp_path, rows=2, learning_rate=0.0)
        trainer.train()
        batch = trainer._buffered_inputs[0]

        def log_probs():
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            with torch.no_grad():
                rows = batch["row_ids"].tolist()
                return trainer.forward.dense(trainer.model, rows, ids, mask, batch["completion_ids"].size(1))[0]

        fresh = log_probs()
        other = [trainer.encoder.encode(row) for row in demo_rows(5)]
        with trainer._generating(temperature=0.0) as engine:
            engine.grow(other, trainer.generation.policy, [str(i) for i in range(5)])
        assert torch.equal(log_probs(), fresh)


class TestOrder:
    def orders(self, trainer):
        """The prompts of each optimiser step of a run."""
        seen = []
        original = trainer._grow

        def grow(prompts, _):
            result = original(prompts, _)
            seen.append([tree.prompt_id for tree in trainer.generation.rollout.trees])
            return result

        trainer.rollout_func = grow
        return seen

    def test_every_epoch_is_shuffled_anew_and_a_resumed_run_equals_the_uninterrupted_one(self, tiny_text, tmp_path):
        """Same prompts, same rollouts, same weights."""
        changes = {
            "shuffle_dataset": True,
            "optim": "adamw_torch",
            "learning_rate": 1e-3,
            "save_strategy": "steps",
            "save_steps": 4,
            "max_steps": 6,
            "rows": 4,
            "lr_scheduler_type": "linear",
        }
        whole = text_trainer(tiny_text, tmp_path, **changes)
        order = self.orders(whole)
        whole.train()
        resumed = text_trainer(tiny_text, tmp_path, **changes)
        rest = self.orders(resumed)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        assert sorted(order[:4]) == sorted([f"row-{i}"] for i in range(4))
        assert order[:2] != order[4:], "the second epoch must have its own order"
        assert rest == order[4:]
        assert all(torch.equal(weight, weights(whole)[name]) for name, weight in weights(resumed).items())

    def test_left_over_prompts_are_announced(self, tiny_text, tmp_path, capsys):
        text_trainer(tiny_text, tmp_path, rows=5, gradient_accumulation_steps=2).train()
        assert "1 of 5 prompts are unused per epoch" in capsys.readouterr().out

    def test_too_few_prompts_are_refused(self, tiny_text, tmp_path):
        trainer = text_trainer(tiny_text, tmp_path, rows=1, gradient_accumulation_steps=2)
        with pytest.raises(ValueError, match="has 1 prompts, but one generation needs 2"):
            trainer.train()


def test_rows_without_a_record_are_refused(tiny_text, tmp_path):
    with pytest.raises(ValueError, match="lacks the column record: build it with dataset"):
        text_trainer(tiny_text, tmp_path, rows=copy.deepcopy(text_rows(2)).remove_columns("record"))
