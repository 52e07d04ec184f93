"""What a run says: metrics of every step, trees as text, evaluation, the table of completions, checkpoints."""

import json
import math

import pandas as pd
import pytest
import torch
from PIL import Image
from trainer_cases import demo_rows, logged, move, script, text_rows, text_trainer, thought_tree, vlm_trainer

from model.loading import load_policy
from task.rewards.router import task_rewards
from task.task_loader import load_tasks

THOUGHTS, ANSWERS = [[301, 302], [303]], [[[304], [305, 306]], [[307], [308]]]

EVERY_STEP = {
    *("loss", "grad_norm", "reward", "reward_std", "rewards/length_reward/mean", "rewards/non_finite", "step_time"),
    *("tokens/generated", "tokens/unique", "tokens/trained", "rollout/failed_share", "rollout/cut_share"),
    *("thought/length", "thought/unclosed_share", "answer/length", "thought/entropy", "answer/entropy"),
    *("variance/between", "variance/within", "variance/rho", "thought/zero_spread", "answer/zero_spread"),
    "thought/sign_disagreement",
    *("thought/clip_ratio/region_mean", "answer/clip_ratio/region_mean", "num_tokens"),
    *(f"{part}/policy_gap{of}" for part in ("sampling", "thought", "answer") for of in ("", "_p999", "_max")),
}


def fixed_tree(prompt_id, policy):
    return thought_tree(prompt_id, THOUGHTS, ANSWERS)


class TestMetrics:
    def test_every_step_logs_all_of_them_as_finite_numbers(self, tiny_text, tmp_path, monkeypatch):
        script(monkeypatch, fixed_tree)
        trainer = text_trainer(tiny_text, tmp_path, max_steps=3)
        trainer.train()
        entries = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert len(entries) == 3
        for entry in entries:
            assert entry.keys() >= EVERY_STEP
            assert all(math.isfinite(value) for value in entry.values())

    def test_their_values_for_a_tree_made_by_hand(self, tiny_text, tmp_path, monkeypatch):
        script(monkeypatch, fixed_tree)
        trainer = text_trainer(tiny_text, tmp_path, reward=lambda completions, **_: [1.0, 0.0, 0.0, 0.0])
        trainer.train()
        entry = trainer.state.log_history[0]
        prompt = len(trainer.generation.rollout.prompts[0].ids)
        expected = {
            "tokens/generated": 8,
            "tokens/unique": prompt + 8,
            "tokens/trained": 4 * prompt + 3 + 4 + 2 + 2,
            "thought/length": 1.5,
            "answer/length": 1.25,
            "thought/unclosed_share": 0,
            "reward": 0.25,
            "variance/within": 0.25,
            "variance/between": 0,
            "variance/rho": 0,
            "thought/zero_spread": 0,
            "thought/sign_disagreement": 0.5,  # one answer to the better thought is worse than the mean
            "answer/zero_spread": 0,
        }
        assert {name: entry[name] for name in expected} == pytest.approx(expected)

    def test_chains_have_no_thought_metrics(self, tiny_text, tmp_path):
        trainer = text_trainer(tiny_text, tmp_path, method="grpo", num_generations=4, max_completion_length=8)
        trainer.train()
        entry = trainer.state.log_history[0]
        assert "advantages/zero_spread" in entry
        assert not any(name.startswith(("thought/", "answer/", "variance/")) for name in entry)

    def test_the_mean_over_micro_batches_is_of_the_part(self, tiny_text, tmp_path, monkeypatch):
        """KL and entropy of thoughts and answers are kept apart, one value per micro-batch."""
        script(monkeypatch, fixed_tree)
        trainer = text_trainer(tiny_text, tmp_path, beta=0.1, perturb=0.01, gradient_accumulation_steps=2)
        trainer.train()
        entry = trainer.state.log_history[0]
        assert entry["thought/kl"] > 0
        assert entry["answer/kl"] > 0
        assert entry["thought/kl"] != entry["answer/kl"]
        assert "kl" not in entry


class TestRewards:
    def test_own_callables_with_weights_where_none_abstains(self, tiny_text, tmp_path, monkeypatch):
        script(monkeypatch, fixed_tree)

        def half(completions, record, **kwargs):
            assert [row["question_type"] for row in record] == ["test"] * 4
            return [1.0, None, None, 0.0]

        def other(prompts, **kwargs):
            return [0.5, 0.25, None, 1.0]

        trainer = text_trainer(tiny_text, tmp_path, reward=[half, other], reward_weights=[1.0, 2.0])
        trainer.train()
        totals = trainer._all_rows().rewards
        assert totals.tolist() == pytest.approx([2.0, 0.5, math.nan, 2.0], nan_ok=True)
        advantages = trainer._buffered_inputs[0]["answer_advantages"]
        assert advantages.tolist() == pytest.approx([0.5773, -1.1547, 0, 0.5773], abs=1e-3)
        assert logged(trainer, "rewards/half/mean") == [0.5]

    @pytest.mark.parametrize("bad", [math.inf, math.nan])
    def test_a_reward_that_is_no_number_abstains_and_the_rest_stays_finite(self, tiny_text, tmp_path, monkeypatch, bad):
        script(monkeypatch, fixed_tree)
        trainer = text_trainer(tiny_text, tmp_path, reward=lambda completions, **_: [1.0, 0.0, bad, 0.0])
        trainer.train()
        advantages = trainer._buffered_inputs[0]["answer_advantages"]
        assert advantages.tolist() == pytest.approx([1.1547, -0.5773, 0, -0.5773], abs=1e-3)
        assert logged(trainer, "reward") == pytest.approx([1 / 3])

    @pytest.mark.parametrize("values", [[1.0] * 3, 0.5, ["a"] * 4, torch.zeros(4, 1)])
    def test_a_reward_that_breaks_the_contract_is_named(self, tiny_text, tmp_path, values):
        def lopsided(completions, **kwargs):
            return values

        trainer = text_trainer(tiny_text, tmp_path, reward=lopsided)
        with pytest.raises(TypeError, match=r"reward function lopsided returned .* for 4 completions"):
            trainer.train()

    def test_equal_rewards_train_nothing(self, tiny_text, tmp_path):
        trainer = text_trainer(tiny_text, tmp_path, reward=lambda completions, **_: [0.1] * len(completions))
        trainer.train()
        assert logged(trainer, "grad_norm") == [0.0]
        assert logged(trainer, "answer/zero_spread") == [1.0]


class TestTable:
    def test_the_table_of_completions_shows_each_leafs_own_advantage(self, tiny_text, tmp_path, monkeypatch):
        """TRL's own column is of its positional groups of one batch; the estimator's replaces it."""
        script(monkeypatch, fixed_tree)
        changes = {"log_completions": True, "reward": lambda completions, **_: [1.0, 0.0, 0.0, 0.0]}
        trainer = text_trainer(tiny_text, tmp_path, **changes)
        trainer.train()
        table = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
        assert table["advantage"].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-3)
        tokens = [THOUGHTS[k] + ANSWERS[k][m] for k in range(2) for m in range(2)]
        assert table["completion"].tolist() == [tiny_text[2].decode(ids) for ids in tokens]
        assert table["prompt"].tolist() == [text_rows(1)[0]["prompt"]] * 4


class TestVerbose:
    def test_trees_are_printed_on_request(self, tiny_text, tmp_path, monkeypatch, capsys):
        script(monkeypatch, fixed_tree)
        monkeypatch.setenv("GRPO_MA_VERBOSE", "1")
        text_trainer(tiny_text, tmp_path, reward=lambda completions, **_: [1.0, 0.0, 0.0, 0.5]).train()
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("tree ", "  "))]
        assert lines[0] == "tree row-0"
        assert [line.split("]")[0] for line in lines[1:4]] == [
            "  thought 0 [ok, 2 tokens", "    answer 2 [ok, 1 tokens", "    answer 3 [ok, 2 tokens",
        ]  # fmt: skip
        assert "reward 1.000" in lines[2]
        assert "reward 0.500" in lines[6]

    def test_with_the_sampled_rows_and_the_thoughts_that_oppose_an_answer(
        self, tiny_text, tmp_path, monkeypatch, capsys
    ):
        script(monkeypatch, fixed_tree)
        monkeypatch.setenv("GRPO_MA_VERBOSE", "1")
        changes = {"max_steps": 2, "per_device_train_batch_size": 8}
        trainer = text_trainer(tiny_text, tmp_path, reward=lambda completions, **_: [1.0, 0.0, 0.0, 0.0] * 2, **changes)
        trainer.train()
        lines = capsys.readouterr().out.splitlines()
        sampled = [line for line in lines if line.startswith("sampled rows")]
        assert sampled == [f"sampled rows of the dataset: process 0 {rows}" for rows in ([0, 1], [2, 3])]
        count = "2 of 4 closed thoughts have an answer with an advantage of the other sign"
        assert lines.count(count) == 2
        assert logged(trainer, "thought/sign_disagreement") == [0.5, 0.5]

    @pytest.mark.parametrize("value", ["0", ""])
    def test_and_not_otherwise(self, tiny_text, tmp_path, monkeypatch, capsys, value):
        script(monkeypatch, fixed_tree)
        monkeypatch.setenv("GRPO_MA_VERBOSE", value)
        text_trainer(tiny_text, tmp_path).train()
        assert "tree row-0" not in capsys.readouterr().out


class TestEvaluation:
    def test_evaluation_between_steps_logs_the_tasks_metrics_and_nothing_else(self, tiny_vlm, tmp_path):
        changes = {
            "eval_strategy": "steps",
            "eval_steps": 1,
            "logging_steps": 2,
            "max_steps": 2,
            "max_thought_length": 40,
        }
        trainer = vlm_trainer(
            tiny_vlm,
            tmp_path,
            reward=task_rewards(load_tasks()),
            eval_rows=demo_rows(3),
            **changes,
        )
        trainer.train()
        evaluations = [e for e in trainer.state.log_history if "eval_trajectory-sharerobot/n" in e]
        assert [entry["step"] for entry in evaluations] == [1, 2]
        for entry in evaluations:
            assert entry["eval_trajectory-sharerobot/n"] == 3
            assert {"eval_trajectory-sharerobot/accuracy", "eval_trajectory-sharerobot/format"} <= entry.keys()
            assert all(name.startswith("eval_") or name in ("step", "epoch") for name in entry), sorted(entry)
        (training,) = [e for e in trainer.state.log_history if "loss" in e]
        assert training["rewards/accuracy_reward/mean"] is not None
        assert trainer.model.training

    def test_it_is_greedy_and_leaves_the_random_state_alone(self, tiny_vlm, tmp_path):
        trainer = vlm_trainer(tiny_vlm, tmp_path, rows=2)
        rows = demo_rows(2)
        state = torch.get_rng_state()
        first = trainer.evaluate(rows)
        assert trainer.evaluate(rows) == first
        assert first["eval_trajectory-sharerobot/n"] == 2
        assert torch.equal(torch.get_rng_state(), state), "evaluating must not change the rollouts that follow"


class TestCheckpoint:
    def test_a_folder_is_enough_to_go_on_offline(self, tiny_vlm, tmp_path):
        """Adapter, processor and chat template: same logits, same ids, same grid under the same pixel limits."""
        from peft import PeftModel
        from transformers import AutoModelForImageTextToText, AutoProcessor

        _, model, processor = tiny_vlm
        base = model.config._name_or_path
        changes = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "learning_rate": 0.1}
        trainer = vlm_trainer(tiny_vlm, tmp_path, rows=2, **changes)
        move(trainer.model, 0.02)
        trainer.train()
        folder = tmp_path / "checkpoint-2"
        assert {"adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "trainer_state.json"} <= {
            path.name for path in folder.iterdir()
        }
        prompt = trainer.encoder.encode(demo_rows(1)[0])
        ids = torch.tensor([prompt.ids])
        inputs = {"input_ids": ids, "position_ids": prompt.position_ids[:, None], **prompt.media}
        with torch.no_grad():
            expected = trainer.model.eval()(**inputs).logits
            plain = AutoModelForImageTextToText.from_pretrained(base, dtype="float32")
            loaded = PeftModel.from_pretrained(plain, folder).eval()
            torch.testing.assert_close(loaded(**inputs).logits, expected, atol=1e-5, rtol=0)
            _, policy, _ = load_policy(None, str(folder), dtype="float32")
            torch.testing.assert_close(policy.eval()(**inputs).logits, expected, atol=1e-5, rtol=0)

        record = json.loads(demo_rows(1)[0]["record"])
        saved = AutoProcessor.from_pretrained(folder)
        messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": record["question"]}]}]
        text = saved.apply_chat_template(messages, add_generation_prompt=True)
        assert text == processor.apply_chat_template(messages, add_generation_prompt=True)
        with Image.open(record["images"][0]) as picture:
            encoded = saved(text=[text], images=[picture.convert("RGB")], return_tensors="pt")
        assert encoded["image_grid_thw"].tolist() == prompt.media["image_grid_thw"].tolist()

    def test_saves_of_a_generation_over_two_updates_fall_on_its_end(self, tiny_text, tmp_path, monkeypatch):
        script(monkeypatch, fixed_tree)
        changes = {"save_strategy": "steps", "save_steps": 1, "steps_per_generation": 2, "max_steps": 4}
        text_trainer(tiny_text, tmp_path, **changes).train()
        assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]


NAN = math.nan


def test_metrics_of_a_window_leave_out_steps_without_a_number(tiny_text, tmp_path):
    trainer = text_trainer(tiny_text, tmp_path)
    trainer.model.train()
    trainer._metrics["train"]["some/value"] = [0.5, NAN, 0.8]
    trainer._metrics["train"]["no/value"] = [NAN]
    trainer.log({})
    assert logged(trainer, "some/value") == [pytest.approx(0.65)]
    assert "no/value" not in trainer.state.log_history[-1]
