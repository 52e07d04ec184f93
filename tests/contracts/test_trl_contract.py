"""Every seam of TRL and its neighbours that the trainer stands on, so that an upgrade fails here and says where."""

import copy
import inspect
import sys
from collections import defaultdict, deque

import pytest
import torch
import trl
from trainer_cases import length_reward, run, text_rows
from trl.models import utils as model_utils
from trl.trainer import utils as trainer_utils

GROUP = 4


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


SIGNATURES = {
    "_get_train_sampler": ["self", "dataset"],
    "_generate": ["self", "prompts"],
    "_prepare_inputs": ["self", "generation_batch"],
    "_generate_and_score_completions": ["self", "inputs"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_compute_loss": ["self", "model", "inputs"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_method_we_override_is_called_as_we_declare_it(name):
    assert parameters(getattr(trl.GRPOTrainer, name)) == SIGNATURES[name]
    from trainer.grpo_ma_trainer import GRPOMATrainer

    assert parameters(getattr(GRPOMATrainer, name)) == SIGNATURES[name]


def test_the_log_prob_pass_begins_with_the_arguments_we_name():
    known = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    assert parameters(trl.GRPOTrainer._get_per_token_logps_and_entropies)[: len(known)] == known


def test_the_constructor_takes_what_we_pass():
    needed = {"model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "rollout_func"}
    assert needed | {"peft_config"} <= set(parameters(trl.GRPOTrainer.__init__))


@pytest.mark.parametrize(
    ("function", "leading"),
    [
        (trainer_utils.split_tensor_dict, ["tensor_dict", "num_chunks"]),
        (trainer_utils.add_fused_lm_head, ["model", "temperature"]),
        (model_utils.unwrap_model_for_generation, ["model", "accelerator", "gather_deepspeed3_params"]),
        (model_utils.disable_gradient_checkpointing, ["model", "gradient_checkpointing_kwargs"]),
        (trl.TrlParser.parse_dict, ["self", "args", "allow_extra_keys"]),
        (trl.get_quantization_config, ["model_args"]),
    ],
)
def test_a_function_we_call_takes_our_arguments(function, leading):
    assert parameters(function)[: len(leading)] == leading


def test_split_tensor_dict_cuts_in_order_and_leaves_scalars():
    whole = {"rows": torch.arange(6), "matrix": torch.arange(12).reshape(6, 2), "count": torch.tensor(7)}
    first, second = trainer_utils.split_tensor_dict(whole, 2)
    assert first["rows"].tolist() == [0, 1, 2]
    assert second["matrix"].tolist() == [[6, 7], [8, 9], [10, 11]]
    assert first["count"] == second["count"] == 7


def test_the_fields_we_re_declare_exist_in_trl():
    fields = trl.GRPOConfig.__dataclass_fields__
    from config.grpo_config import GRPOConfig
    from config.unsupported import SUPPORTED

    assert set(SUPPORTED) <= set(fields)
    ours = {name for name in GRPOConfig.__annotations__ if name not in fields}
    assert ours == {
        *("method", "thought_end", "sync_prompt_across_ranks", "prefix_sharing", "max_slots"),
        *("shared_token_weight", "on_non_finite", "reward_timeout", "resume_weights_only", "log_trees"),
        *("max_prompt_length", "on_long_prompt", "on_bad_media", "rollout_prompts", "warmup_ratio"),
    }


def test_deepspeed_lets_an_op_be_marked_as_absent():
    ops = pytest.importorskip("deepspeed.ops")
    assert isinstance(ops.__compatible_ops__, dict)
    assert "deepspeed_shm_comm" in ops.__compatible_ops__


class Probe(trl.GRPOTrainer):
    """Stock TRL with a rollout function; notes what passes the seams."""

    def rollout(self, prompts, trainer):
        self.asked = prompts
        ids = [[300 + row, 400 + row, 500][: 2 + row % 2] for row in range(len(prompts))]
        return {
            "prompt_ids": [[1, 2, 3]] * len(prompts),
            "completion_ids": ids,
            "logprobs": [[-1.0] * len(row) for row in ids],
            "env_mask": [[1] * (len(row) - 1) + [0] for row in ids],
            "note": list(range(len(prompts))),
        }

    def _generate(self, prompts):
        self.generated = super()._generate(prompts)
        return self.generated

    def _generate_and_score_completions(self, inputs):
        self.metrics_at_generation = self._metrics["train"]
        self.generation = super()._generate_and_score_completions(inputs)
        self.logs_at_generation = {name: copy.copy(column) for name, column in self._logs.items()}
        return self.generation

    def _calculate_rewards(self, inputs, *rest):
        self.noted = [row["note"] for row in inputs]
        self.rewards = super()._calculate_rewards(inputs, *rest)
        return self.rewards

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        self.logps = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        return self.logps

    def _compute_loss(self, model, inputs):
        self.loss_inputs = inputs
        loss = super()._compute_loss(model, inputs)
        wide = inputs["advantages"][:, None].expand_as(inputs["completion_ids"])
        self.losses = (loss.item(), super()._compute_loss(model, {**inputs, "advantages": wide}).item())
        return loss


@pytest.fixture(scope="module")
def probe(tiny_text, tmp_path_factory):
    _, model, tokenizer = tiny_text
    trainer = Probe(
        model=copy.deepcopy(model),
        processing_class=tokenizer,
        reward_funcs=length_reward,
        args=trl.GRPOConfig(
            str(tmp_path_factory.mktemp("probe")), max_steps=1, num_generations=GROUP, report_to="none", use_cpu=True,
            per_device_train_batch_size=GROUP, gradient_accumulation_steps=2, bf16=False, disable_tqdm=True, seed=1,
            num_iterations=2, beta=0.1,
        ),
        train_dataset=text_rows(4),
        rollout_func=lambda prompts, trainer: trainer.rollout(prompts, trainer),
    )  # fmt: skip
    run(trainer)
    return trainer


class TestOneStepOfStockTrl:
    def test_a_rollout_function_gets_each_prompt_repeated(self, probe):
        assert len(probe.asked) == 2 * GROUP
        assert [probe.asked.index(prompt) // GROUP for prompt in probe.asked] == [0] * GROUP + [1] * GROUP

    def test_its_extra_columns_reach_the_rewards_and_env_mask_the_loss(self, probe):
        assert probe.noted == list(range(2 * GROUP))
        assert probe.generation["tool_mask"].tolist()[:2] == [[1, 0, 1], [1, 1, 0]]  # padding counts as 1
        assert probe.generation["sampling_per_token_logps"].tolist()[0] == [-1.0, -1.0, 0.0]

    def test_the_texts_of_completions_are_the_fourth_of_what_is_generated(self, probe):
        _, ids, _, texts, *_ = probe.generated
        assert texts == probe._tokenizer.batch_decode(ids, skip_special_tokens=True)

    def test_the_generation_holds_what_we_slice(self, probe):
        rows, width = 2 * GROUP, 3
        for name in ("completion_ids", "completion_mask", "tool_mask", "old_per_token_logps", "ref_per_token_logps"):
            assert probe.generation[name].shape == (rows, width), name
        assert probe.generation["advantages"].shape == (rows,)
        assert probe.generation["num_items_in_batch"] == rows * 2.5 - rows

    def test_rewards_are_gathered_rows_by_functions(self, probe):
        assert probe.rewards.shape == (2 * GROUP, 1)

    def test_the_log_prob_pass_gives_three(self, probe):
        logps, entropies, aux = probe.logps
        assert logps.shape == entropies.shape == (GROUP, 3)
        assert aux is None

    def test_the_loss_takes_one_advantage_a_token(self, probe):
        assert probe.losses[0] == probe.losses[1]

    def test_what_we_read_and_write_inside_has_its_layout(self, probe):
        assert isinstance(probe.metrics_at_generation, defaultdict)
        assert probe.metrics_at_generation.default_factory is list
        logged = probe.logs_at_generation["advantages"]
        assert isinstance(logged, deque)
        assert len(logged) == logged.maxlen == 2 * GROUP
        assert list(logged) == pytest.approx(probe.generation["advantages"].tolist())
        assert probe.reward_weights.tolist() == [1.0]
        assert probe._step == 2
        assert probe.current_gradient_accumulation_steps == 2
        names = (
            *(
                "_buffered_inputs",
                "_tokenizer",
                "model_wrapped",
                "num_iterations",
                "num_generations",
                "shuffle_dataset",
            ),
            *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "eos_token_ids", "is_deepspeed_enabled"),
        )
        assert [name for name in names if not hasattr(probe, name)] == []

    def test_dapo_divides_by_the_count_of_a_generation_over_its_updates(self, probe):
        """loss = sum / (num_items_in_batch * accumulation / steps_per_generation): `_micro_batches` relies on it."""
        inputs = {**probe.loss_inputs, "advantages": torch.ones(GROUP)}
        probe.loss_type, before = "dapo", probe.loss_type
        probe.beta = 0.0
        probe.model.train()
        with torch.no_grad():
            one = trl.GRPOTrainer._compute_loss(probe, probe.model, inputs)
            doubled = {**inputs, "num_items_in_batch": 2 * inputs["num_items_in_batch"]}
            half = trl.GRPOTrainer._compute_loss(probe, probe.model, doubled)
        probe.loss_type = before
        assert one.item() == pytest.approx(2 * half.item(), rel=1e-6)

    def test_the_fused_head_takes_shifted_labels_of_one_packed_row(self, probe):
        labels = torch.tensor([[-100, -100, 300, 400]])
        with torch.no_grad():
            out = probe.model(
                input_ids=torch.tensor([[1, 2, 3, 300]]),
                position_ids=torch.arange(4)[None],
                shift_labels=labels,
                fused_lm_head=True,
            )
            logits = probe.model(input_ids=torch.tensor([[1, 2, 3, 300]])).logits
        expected = logits.log_softmax(-1)[0, [2, 3], [300, 400]]
        assert out.log_probs.shape == (1, 4)
        assert out.log_probs[0, 2:].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
        assert out.entropy.shape == (1, 4)

    def test_a_reference_models_head_computes_no_entropy(self, probe):
        with torch.no_grad():
            out = probe.ref_model(
                input_ids=torch.tensor([[1, 2]]), shift_labels=torch.tensor([[2, 3]]), fused_lm_head=True
            )
        assert out.entropy is None


def test_gradient_checkpointing_is_put_back_after_an_error(tiny_text):
    model = copy.deepcopy(tiny_text[1])
    model.gradient_checkpointing_enable()
    inside = []

    def fail():
        with model_utils.disable_gradient_checkpointing(model, None):
            inside.append(model.is_gradient_checkpointing)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail()
    assert inside == [False]
    assert model.is_gradient_checkpointing


def test_trls_dump_of_a_record_is_filtered_and_nothing_else(caplog):
    from accelerate import PartialState
    from trl.trainer import grpo_trainer

    from trainer import grpo_ma_trainer
    from trainer.logs import progress

    PartialState()  # TRL's logger is accelerate's

    assert progress.RECORD_DUMP in inspect.getsource(trl.GRPOTrainer._calculate_rewards), grpo_ma_trainer.__name__
    grpo_trainer.logger.warning(f"{progress.RECORD_DUMP} for the following kwargs: ...")
    grpo_trainer.logger.warning("something else")
    (record,) = [record for record in caplog.records if record.name.startswith("trl")]
    assert record.getMessage().endswith("something else")


def test_rewards_are_gathered_once_by_a_name_of_trls_module():
    """`trainer/zero_spread/scoring.py` exchanges it, so that processes may score different numbers of rows."""
    source = inspect.getsource(trl.GRPOTrainer._calculate_rewards)
    assert source.count("gather(") - source.count("asyncio.gather(") == 1
    assert "rewards_per_func = gather(rewards_per_func)" in source
    assert callable(sys.modules[trl.GRPOTrainer.__module__].gather)
