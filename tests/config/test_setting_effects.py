"""Every field of GRPOConfig, whatever its origin: it acts, is refused, or is harmless; each with what shows it.

`ACTS` and the fields of methods are run on a tiny model: the changed value changes rollouts, weights, the log, the
files or how the run computes. `SHOWN` names the test that shows a field; `ELSEWHERE` are fields that act where this
machine cannot show it.
"""

from __future__ import annotations

import hashlib
import re

import pytest
import torch
from agent_cases import Echo, task_of
from paths import ROOT
from trainer_cases import text_rows, text_trainer
from transformers.trainer_pt_utils import AcceleratorConfig

from config.foreign import OWNERS
from config.grpo_config import GRPOConfig
from config.methods import SETTINGS
from config.unsupported import ACCELERATOR, IDLE, SUPPORTED
from config.vllm_settings import FIELDS as VLLM_FIELDS
from task.errors import UserError
from trainer.methods import METHODS
from trainer.policies.agent.forms import Action, TagForm, Turn

CHAINS = {"num_generations": 4, "max_completion_length": 8}
AGENTS = {
    "max_turns": 2, "max_turn_length": 6, "max_observation_length": 60, "max_completion_length": 160, "beta": 0.0,
}  # fmt: skip
BASE = {
    "grpo": CHAINS,
    "rloo": CHAINS,
    "reinforce_plus_plus": CHAINS,
    "parent_difference": {
        "num_generations": 6, "first_segments": 2, "segment_length": 4, "max_completion_length": 12,
    },
    "grpo_ma": {"max_thought_length": 24, "max_answer_length": 6, "thought_end": "o"},
    "tree_adv": {
        "num_generations": 6, "num_trees": 2, "min_gap": 2, "max_completion_length": 12, "fork_entropy": 1.0,
    },
    "tree_grpo": AGENTS,
    "gigpo": AGENTS | {"num_generations": 4},
    "turn_value": AGENTS | {"turn_chains": 2, "turn_branches": 2, "turn_rounds": 1},
}  # fmt: skip
TWICE = {"max_steps": 2}
ADAM = {"optim": "adamw_torch", "max_steps": 2}
OFF_POLICY = {"num_iterations": 2, "max_steps": 2, "learning_rate": 0.3}
SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}

# Fields that every method reads: the changed value, and what else both runs have.
ACTS = {
    "per_device_train_batch_size": (24, {}),
    "num_train_epochs": (2, {"max_steps": -1, "num_train_epochs": 1}),
    "max_steps": (2, {}),
    "learning_rate": (1e-3, {}),
    "lr_scheduler_type": ("linear", TWICE),
    "lr_scheduler_kwargs": ({"num_cycles": 3}, {"lr_scheduler_type": "cosine_with_restarts", "max_steps": 3}),
    "warmup_steps": (2, {"lr_scheduler_type": "constant_with_warmup"}),
    "optim": ("adamw_torch", {}),
    "optim_args": ("momentum=0.9", TWICE),
    "weight_decay": (0.5, {}),
    "adam_beta1": (0.5, ADAM),
    "adam_beta2": (0.5, ADAM),
    "adam_epsilon": (1.0, ADAM),
    "gradient_accumulation_steps": (2, {}),
    "max_grad_norm": (0.01, {}),
    "bf16": (True, {}),
    "gradient_checkpointing": (True, {}),
    "activation_checkpointing": (True, {}),
    "logging_strategy": ("no", {}),
    "logging_steps": (2, TWICE),
    "logging_first_step": (True, {"logging_steps": 2, "max_steps": 2}),
    "disable_tqdm": (False, {}),
    "save_strategy": ("steps", {"save_steps": 1}),
    "save_steps": (2, SAVING),
    "save_only_model": (True, SAVING),
    "save_total_limit": (1, SAVING),
    "skip_memory_metrics": (False, {}),
    "seed": (7, {}),
    "data_seed": (7, {"shuffle_dataset": True}),
    "shuffle_dataset": (True, {}),
    "steps_per_generation": (2, TWICE),
    "temperature": (0.5, {}),
    "top_p": (0.5, {}),
    "top_k": (3, {}),
    "min_p": (0.3, {}),
    "repetition_penalty": (2.0, {}),
    "loss_type": ("sapo", TWICE),
    "scale_rewards": ("none", {}),
    "importance_sampling_level": ("sequence", OFF_POLICY),
    "beta": (0.5, TWICE),
    "num_iterations": (2, TWICE),
    "epsilon": (0.001, OFF_POLICY),
    "epsilon_high": (0.001, OFF_POLICY),
    "delta": (1.001, OFF_POLICY),
    "sapo_temperature_neg": (3.0, OFF_POLICY | {"loss_type": "sapo"}),
    "sapo_temperature_pos": (3.0, OFF_POLICY | {"loss_type": "sapo"}),
    "use_bias_correction_kl": (False, OFF_POLICY | {"beta": 0.5, "max_steps": 4}),
    "reward_weights": ([2.0], {}),
    "mask_truncated_completions": (True, {}),
    "log_completions": (True, {}),
    "num_completions_to_print": (1, {"log_completions": True}),
    "log_trees": ("every:1", {}),
    "prefix_sharing": ("off", {}),
    "num_generations": (8, {}),
    "max_completion_length": (10, {}),
    "shared_token_weight": ("once", {}),
}
# Where the method's preset is that value, another one.
INSTEAD = {
    ("parent_difference", "scale_rewards"): "group",
    ("parent_difference", "shared_token_weight"): "per_leaf",
    ("rloo", "scale_rewards"): "group",
    ("turn_value", "importance_sampling_level"): "token",
}
REFUSED_BY = {
    "mask_truncated_completions": {"tree_grpo", "gigpo", "turn_value"},
    "shared_token_weight": {"grpo", "grpo_ma", "rloo", "reinforce_plus_plus", "gigpo"},
    "num_generations": {"grpo_ma", "tree_grpo", "turn_value"},
    "max_completion_length": {"grpo_ma"},
}
OWN = {
    "think_num": (3, {}),
    "answer_num": (3, {}),
    "max_thought_length": (4, {}),
    "max_answer_length": (3, {}),
    "objective": ("joint", {}),
    "answer_warmup_steps": (1, {}),
    "thought_weight": (0.5, {}),
    "num_trees": (3, {}),
    "branch_factor": (3, {}),
    "min_gap": (4, {}),
    "fork_rule": ("fixed", {"fork_entropy": None}),
    "fork_share": (0.6, {"fork_entropy": None, "max_steps": 2}),
    "fork_entropy": (6.2, {}),
    "fork_in_answer": (False, {"thought_end": "o", "max_completion_length": 40}),
    "distinct_forks": (False, {"temperature": 0.3, "fork_entropy": 0.1}),
    "aggregation": ("sum", {}),
    "first_segments": (3, {}),
    "segment_branches": (3, {}),
    "segment_length": (2, {}),
    "step_weight": (0.0, {}),
    "gamma": (0.5, {}),
    "reward_baseline": ("prompt", {"per_device_train_batch_size": 8}),
    "tree_num": (3, {}),
    "expand_num": (1, {}),
    "branches_per_node": (2, {}),
    "expand_rounds": (2, {}),
    "expand_root": (True, {}),
    "fork_choice": ("code", {}),
    "branch_temperature": (0.1, {}),
    "branch_top_k": (1, {}),
    "advantage": ("inter", {}),
    "turn_chains": (3, {}),
    "turn_branches": (3, {}),
    "turn_rounds": (2, {}),
    "sibling_penalty": (9.0, {}),
    "turn_baseline": ("parent", {}),
    "max_turns": (1, {}),
    "max_turn_length": (3, {}),
    "max_observation_length": (36, {}),
    "environment_args": ('{"note": "new"}', {}),
}

# Field -> the test that shows it.
SHOWN = {
    "chat_template_kwargs": "model/test_chat_templates.py",
    "tool_timeout": "trainer/policies/agent/test_agent_faults.py",
    "max_slots": "trainer/logprobs/test_micro_batches.py",
    "rollout_prompts": "contracts/test_trl_contract.py",
    "max_prompt_length": "trainer/test_prompt_limits.py",
    "on_long_prompt": "trainer/test_trainer_rollouts.py",
    "on_bad_media": "trainer/test_trainer_rollouts.py",
    "on_non_finite": "trainer/run/test_training_faults.py",
    "on_zero_spread": "trainer/zero_spread/test_redraw.py",
    "max_redraws": "trainer/zero_spread/test_redraw.py",
    "keep_between": "trainer/zero_spread/test_redraw.py",
    "grow_budget": "trainer/zero_spread/test_grow.py",
    "reward_timeout": "trainer/run/test_training_faults.py",
    "thought_end": "trainer/test_trainer_arguments.py",
    "sync_prompt_across_ranks": "processes/test_two_processes.py",
    "resume_from_checkpoint": "trainer/run/test_checkpoints.py",
    "resume_weights_only": "processes/test_stops.py",
    "eval_strategy": "trainer/logs/test_trainer_logs.py",
    "eval_steps": "trainer/logs/test_trainer_logs.py",
    "eval_delay": "trainer/run/test_best.py",
    "eval_on_start": "trainer/test_trainer_arguments.py",
    "per_device_eval_batch_size": "trainer/evaluation/test_agent_evaluation.py",
    "load_best_model_at_end": "trainer/run/test_best.py",
    "metric_for_best_model": "trainer/run/test_best.py",
    "greater_is_better": "trainer/run/test_best.py",
    "ddp_find_unused_parameters": "support/uneven_case.py",
    "ddp_timeout": "processes/test_stops.py",
    "fsdp": "processes/test_fsdp.py",
    "deepspeed": "processes/test_two_processes.py",
    "method": "config/test_config.py",
    "use_cpu": "config/test_config.py",
    "output_dir": "config/test_output.py",
    "report_to": "config/test_output.py",
    **dict.fromkeys(("use_vllm", *VLLM_FIELDS), "config/test_vllm_settings.py"),
    "remove_unused_columns": "config/test_config.py",
    "generation_batch_size": "config/test_config.py",
    "warmup_ratio": "config/test_unsupported.py",
    "accelerator_config": "config/test_unsupported.py",
}
_TRACKERS, _HUB, _GPU = "a tracker's record of the run", "the hub, where push_to_hub sends the model", "a GPU"
_DDP, _PACKAGE, _LOGGER = (
    "how DDP exchanges gradients",
    "a package that is not installed",
    "the libraries' log messages",
)
_RESUME = "a resumed run"
ELSEWHERE = {
    **dict.fromkeys(("run_name", "project", "log_unique_prompts"), _TRACKERS),
    **dict.fromkeys(("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"), _TRACKERS),
    **dict.fromkeys(("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy"), _HUB),
    **dict.fromkeys(("hub_always_push", "hub_revision", "log_completions_hub_repo", "trust_remote_code"), _HUB),
    **dict.fromkeys(("fp16", "tf32", "torch_empty_cache_steps", "full_determinism"), _GPU),
    **dict.fromkeys(("ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend"), _DDP),
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config", "optim_target_modules"), _PACKAGE),
    **dict.fromkeys(("log_level", "log_level_replica", "debug"), _LOGGER),
    **dict.fromkeys(("log_on_each_node", "save_on_each_node"), "several nodes"),
    **dict.fromkeys(("ignore_data_skip", "restore_callback_states_from_checkpoint"), _RESUME),
    "fsdp_config": "fsdp",
    "gradient_checkpointing_kwargs": "gradient_checkpointing, memory and time",
    "activation_checkpointing_kwargs": "activation_checkpointing, memory and time",
    "disable_dropout": "a model with dropout",
}

# Field -> (a value, why it changes nothing that was learnt, sampled or written).
_LOADER = "rows are two strings; a loader's worker, buffer or copy changes when they are read"
HARMLESS = {
    "average_tokens_across_devices": (False, "TRL's loss counts the tokens of all processes whatever it says"),
    "logging_nan_inf_filter": (False, "a loss that is not finite ends the step before it is logged (on_non_finite)"),
    "dataloader_drop_last": (True, "the sampler gives whole generations only"),
    "dataloader_num_workers": (1, _LOADER),
    "dataloader_pin_memory": (False, _LOADER),
    "dataloader_persistent_workers": (None, _LOADER),
    "dataloader_prefetch_factor": (None, _LOADER),
    "dataloader_multiprocessing_context": (None, _LOADER),
    "dataloader_in_order": (None, _LOADER),
    "pad_to_multiple_of": (16, "padding is masked"),
    "do_train": (True, "a switch for users' own scripts, which no library reads in training"),
    "do_eval": (True, "a switch for users' own scripts"),
    "do_predict": (True, "a switch for users' own scripts"),
    "local_rank": (None, "the launcher says it, and transformers reads the launcher"),
}
HARMLESS_ACCELERATOR = {
    "even_batches": (False, "the sampler gives all processes as many rows"),
    "use_seedable_sampler": (False, "the sampler is this project's own"),
    "non_blocking": (True, "rows hold no tensor that is copied"),
}
ACCELERATOR_ELSEWHERE = {"use_configured_state": "a state that Python code set up before"}

TIMES = re.compile("seconds|per_second|runtime|step_time|tokens_per")


class Noted(Echo):
    """An observation of many words, which depends on environment_args."""

    def search(self, query: str) -> str:
        """Echo.

        Args:
            query: anything.

        Returns:
            It, and a note.
        """
        return f"{query} {self._row.get('note', 'old')} " * 12


@pytest.fixture(scope="module")
def seen():
    """Outcomes of runs, by their settings: many fields are compared with the same run."""
    return {}


@pytest.fixture
def outcome(seen, tiny_text, tmp_path, monkeypatch, capfd):
    """What a run gave: rollouts, weights, log, files, what stood on the screen, and how it computed."""

    def read(self, text, ended):
        code = sum(map(ord, text))
        return Turn(answered=True) if code % 4 == 0 else Turn(actions=(Action("search", str(code % 5)),))

    monkeypatch.setattr(TagForm, "read", read)
    runs = iter(range(9))

    def call(method, **changes):
        key = repr((method, changes))
        if key not in seen:
            seen[key] = run(method, changes)
        return seen[key]

    def run(method, changes):
        torch.manual_seed(0)
        folder = tmp_path / str(next(runs))
        trainer = text_trainer(tiny_text, folder, rows=text_rows(8), method=method, **(BASE[method] | changes))
        if METHODS[method].acts:
            trainer.tasks = {"test": task_of(Noted, "test")}
        capfd.readouterr()
        trainer.train()
        screen = capfd.readouterr()
        tokens = [node.token_ids for tree in trainer.generation.rollout.trees for node in tree.nodes]
        weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())).hexdigest()
        log = [{k: v for k, v in entry.items() if not TIMES.search(k)} for entry in trainer.state.log_history]
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        how = (trainer.model.is_gradient_checkpointing, trainer.forward.sharing)
        screen = ("'loss'" in screen.out, screen.out.count("│"))  # a whole log entry, the lines of a table
        return tokens, weights, log, files, how, screen

    return call


def test_every_method_has_a_base():
    assert BASE.keys() == SETTINGS.keys()


def test_every_field_stands_in_one_table():
    tables = {
        "acts": ACTS, "own": OWN, "supported": SUPPORTED, "idle": IDLE, "shown": SHOWN, "elsewhere": ELSEWHERE,
        "harmless": HARMLESS,
    }  # fmt: skip
    fields = set(GRPOConfig.__dataclass_fields__)
    assert fields == set().union(*tables.values())
    twice = {(name, one, other) for one in tables for other in tables if one < other for name in tables[one]
             if name in tables[other]}  # fmt: skip
    assert {name for name, *_ in twice} <= {"loss_type", "importance_sampling_level", "scale_rewards"}
    assert set(OWN) | {"tool_timeout"} == set(OWNERS)


def test_every_field_of_accelerator_config_stands_in_one_table():
    assert set(AcceleratorConfig.__dataclass_fields__) == {*ACCELERATOR, *HARMLESS_ACCELERATOR, *ACCELERATOR_ELSEWHERE}


@pytest.mark.parametrize("name", SHOWN)
def test_the_test_that_shows_a_field_names_it(name):
    assert name in (ROOT / "tests" / SHOWN[name]).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), [(method, name) for name in OWN for method in OWNERS[name]])
def test_a_field_of_a_method_acts(outcome, method, name):
    value, base = OWN[name]
    assert outcome(method, **base) != outcome(method, **base, **{name: value})


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("method", SETTINGS)
def test_a_shared_field_acts_or_is_refused(outcome, method, name):
    value, base = ACTS[name]
    value = INSTEAD.get((method, name), value)
    if method in REFUSED_BY.get(name, ()):
        with pytest.raises(UserError, match=name):
            outcome(method, **base, **{name: value})
    else:
        assert outcome(method, **base) != outcome(method, **base | {name: value})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (value, _) in HARMLESS.items() if value is not None])
def test_a_harmless_field_changes_nothing(outcome, name):
    assert outcome("grpo_ma") == outcome("grpo_ma", **{name: HARMLESS[name][0]})


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS_ACCELERATOR)
def test_a_harmless_field_of_accelerator_config_changes_nothing(outcome, name):
    assert outcome("grpo_ma") == outcome("grpo_ma", accelerator_config={name: HARMLESS_ACCELERATOR[name][0]})
