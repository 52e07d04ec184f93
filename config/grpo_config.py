"""Training arguments: TRL's GRPOConfig plus what a rollout tree needs, derived before TRL's own checks."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field, fields
from datetime import timedelta

import torch
import trl

from config.checks import check_training
from config.distributed import launched_with_deepspeed, prepare_deepspeed_on_cpu
from config.method_settings import apply_preset, apply_size
from config.methods import SETTINGS
from config.unsupported import check_accelerator
from config.zero_spread import ZeroSpreadFields, check_budget
from task.errors import UserError

METHOD_FIELDS = [settings.fields for settings in SETTINGS.values() if settings.fields]


@dataclass
class GRPOConfig(*METHOD_FIELDS, ZeroSpreadFields, trl.GRPOConfig):
    """Arguments of `GRPOMATrainer`. Fields that default to None are derived or taken from the preset of `method`.

    Raises:
        UserError: an invalid value; the message states the rule and the way out.
    """

    method: str = field(
        default="grpo_ma",
        metadata={
            "help": "Training method: " + ", ".join(f"{name} ({one.about})" for name, one in SETTINGS.items()) + ".",
            "choices": list(SETTINGS),
        },
    )
    thought_end: str = field(
        default="</think>",
        metadata={
            "help": "Text that ends a thought: a closing tag such as </think> or [/REASONING], or any other text; "
            "<think> then opens the thought."
        },
    )
    sync_prompt_across_ranks: bool | None = field(
        default=None,
        metadata={
            "help": "True: all processes grow trees of the same prompt and a group spans them (K in the formulas is "
            "processes * think_num). False: each group lives on one process. Default: True for grpo_ma, else False."
        },
    )
    shared_token_weight: str | None = field(
        default=None,
        metadata={
            "help": "How often a token shared by n leaves counts in the loss: n times (per_leaf, as in TRL's rows and "
            "the released Tree-GRPO code) or once. In grpo_ma each thought counts once in either case. "
            "Default: the method's preset (per_leaf).",
            "choices": ["per_leaf", "once"],
        },
    )
    prefix_sharing: str = field(
        default="auto",
        metadata={
            "help": "Compute shared tokens once in the log-prob passes: on, off (one row per leaf), or auto (on if "
            "it is exact: for language models with full attention).",
            "choices": ["auto", "on", "off"],
        },
    )
    max_slots: int | None = field(
        default=None,
        metadata={
            "help": "Maximum token slots per packed forward pass; one path (prompt and completion) must fit. Larger "
            "passes are split between subtrees, which saves memory, not time. Default: no limit."
        },
    )
    max_prompt_length: int = field(
        default=4096,
        metadata={
            "help": "Maximum tokens per prompt, media included. Prompts are never truncated: see on_long_prompt."
        },
    )
    on_long_prompt: str = field(
        default="error",
        metadata={
            "help": "Prompts longer than max_prompt_length: error stops the run, skip leaves them out (counted and "
            "logged).",
            "choices": ["error", "skip"],
        },
    )
    on_bad_media: str = field(
        default="error",
        metadata={
            "help": "Pictures and videos that cannot be read: error stops the run, skip leaves them out (counted and "
            "logged).",
            "choices": ["error", "skip"],
        },
    )
    log_trees: str | None = field(
        default=None,
        metadata={
            "help": "every:N writes the first process's rollout trees of every N-th step to trees.jsonl in output_dir, "
            "for scripts/report.py."
        },
    )
    on_non_finite: str = field(
        default="stop",
        metadata={
            "help": "Loss or gradient that is NaN or infinite: stop the run, or skip the micro-batch (counted and "
            "logged). A non-finite loss always stops under ZeRO-3 and FSDP, a non-finite gradient under DeepSpeed.",
            "choices": ["stop", "skip"],
        },
    )
    reward_timeout: float = field(
        default=300.0,
        metadata={
            "help": "Time limit in seconds: per completion for a task's reward, per call for any other reward "
            "function. A reward that exceeds it abstains (counted and logged)."
        },
    )
    rollout_prompts: int | None = field(
        default=None,
        metadata={
            "help": "Prompts that a process rolls out at a time (bounds the memory of the KV cache). Default: all."
        },
    )

    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={
            "help": "auto: resume from the latest complete checkpoint in output_dir, or start anew if there is none; "
            "true: the same, but there must be one; the path of a folder checkpoint-N: resume from that one.",
            "aliases": ["--resume"],
        },
    )
    resume_weights_only: bool = field(
        default=False,
        metadata={
            "help": "Load only the weights of the checkpoint and start at step 0: for another number of processes or "
            "another ZeRO stage, to which its optimiser states do not fit."
        },
    )

    num_generations: int | None = field(
        default=None,
        metadata={
            "help": "Leaves per prompt and process. Derived for grpo_ma (think_num * answer_num) and tree_grpo "
            "(tree_num * (expand_rounds * expand_num * branches_per_node + 1)); default 8, and 16 for tree_adv and "
            "parent_difference."
        },
    )
    max_completion_length: int | None = field(
        default=None,
        metadata={
            "help": "Maximum tokens per completion, observations included. Derived for grpo_ma (max_thought_length + "
            "max_answer_length); default 512, and 4096 for agents."
        },
    )
    per_device_train_batch_size: int | None = field(
        default=None,
        metadata={"help": "Rows (leaves) per micro-batch, a multiple of num_generations. Default: one tree."},
    )
    learning_rate: float | None = field(
        default=None, metadata={"help": "Default: the method's preset (1e-5; agents 1e-6)."}
    )
    loss_type: str | None = field(
        default=None, metadata={"help": "TRL's loss type. Default: the method's preset (grpo)."}
    )
    beta: float | None = field(
        default=None, metadata={"help": "KL coefficient. Default: the method's preset (0; agents 0.001)."}
    )
    scale_rewards: str | None = field(
        default=None,
        metadata={
            "help": "What divides reward differences: group, the standard deviation of the values that are compared "
            "(also True); batch, that of all values of the generation, over all processes; none, nothing (also False). "
            "In grpo_ma the values of a thought's level are those of thoughts. Default: the method's preset (group)."
        },
    )
    importance_sampling_level: str | None = field(
        default=None,
        metadata={
            "help": "Which tokens share a ratio of probabilities: token, each has its own; sequence, those of a "
            "completion (GSPO), of a part in grpo_ma, and of a turn in turn_value. Default: the method's preset "
            "(token)."
        },
    )
    epsilon: float | None = field(
        default=None,
        metadata={"help": "Lower distance of the clipped ratio from 1. Default: the method's preset (0.2)."},
    )
    router_aux_loss_coef: float | None = field(
        default=0.0,
        metadata={"help": "Must stay 0: the load-balancing loss of mixture-of-experts models is not supported."},
    )
    vllm_importance_sampling_mode: str = field(
        default="token_truncate",
        metadata={
            "help": "With vLLM: what happens to a token's weight, its probability in training over that in sampling, "
            "outside of vllm_importance_sampling_clip_min and _clip_max: clamped (token_truncate) or set to 0 "
            "(token_mask)."
        },
    )
    warmup_ratio: float = field(
        default=0.0,
        metadata={"help": "Must stay 0: warmup_steps also accepts a share of the steps (below 1)."},
    )
    use_cpu: bool | None = field(default=None, metadata={"help": "Default: True where no accelerator is visible."})
    ddp_timeout: int = field(
        default=7200,
        metadata={
            "help": "Seconds a process waits for the others in a collective. Uneven rollouts and rewards, slow disks "
            "and evaluation all count, so it is long; a process that dies is detected by the launcher."
        },
    )
    data_seed: int | None = field(
        default=42, metadata={"help": "Seed of the prompt order; model and rollouts use `seed`."}
    )

    def __post_init__(self):
        self.scale_rewards = _SCALES.get(str(self.scale_rewards).lower(), self.scale_rewards)
        check_training(self)
        self.from_preset = apply_preset(self, SETTINGS[self.method].preset)
        self._resolve_device()
        self._derive_batch()
        if isinstance(self.report_to, str) and "," in self.report_to:
            self.report_to = [name.strip() for name in self.report_to.split(",")]
        stated = self.greater_is_better
        super().__post_init__()
        self.greater_is_better = stated  # the library guesses it from the name; the trainer asks the task
        check_accelerator(self.accelerator_config)
        assert self.world_size == int(os.environ.get("WORLD_SIZE", "1")), (
            "the launcher and accelerate disagree on the world size"
        )
        check_budget(self)
        metric = self.metric_for_best_model
        if metric is not None and "/" not in metric:
            raise UserError(
                f"metric_for_best_model={metric}: evaluation gives no such metric; name a task's, as the log does, "
                "such as trajectory-sharerobot/accuracy"
            )
        if self.window > 1 and self.answer_warmup_steps % self.window:
            raise UserError(
                f"answer_warmup_steps={self.answer_warmup_steps} ends inside a generation, which is used for "
                f"{self.window} optimiser steps: set it to a multiple of {self.window}"
            )
        if self.loss_type == "cispo" and (self.epsilon_high is None or "epsilon_high" in self.from_preset):
            cap = f"epsilon={self.epsilon}" if self.epsilon_high is None else f"{self.epsilon_high}, the preset's"
            warnings.warn(
                f"loss_type cispo caps the ratio at epsilon_high, which defaults to {cap}: every token then gets a "
                "fraction of its gradient; set epsilon_high (5 is usual)",
                stacklevel=3,
            )
        shaped = [f"{name}={getattr(self, name)}" for name, no in _NEUTRAL.items() if getattr(self, name) not in no]
        if shaped:
            warnings.warn(
                f"{', '.join(shaped)}: rollouts are then sampled from another distribution than the one being trained; "
                "sampling/policy_gap in the log shows by how much",
                stacklevel=3,
            )

    @property
    def leaves(self) -> int:
        """Rows per tree outside the answer warm-up."""
        return self.num_generations

    @property
    def prompts_per_generation(self) -> int:
        """Trees that a process grows in one generation."""
        return self.per_device_train_batch_size * self.steps_per_generation // self.num_generations

    @property
    def window(self) -> int:
        """Optimiser steps per generation."""
        return self.steps_per_generation * self.num_iterations // self.gradient_accumulation_steps

    @property
    def method_settings(self) -> dict:
        """The method's own fields and their values."""
        own = SETTINGS[self.method].fields
        return {field.name: getattr(self, field.name) for field in fields(own)} if own else {}

    @property
    def data_order(self) -> dict:
        """What determines the position of a step in the data, besides the seeds and the number of records."""
        order = {"prompts per process and generation": self.prompts_per_generation, "steps per generation": self.window}
        names = ("num_iterations", "sync_prompt_across_ranks", "shuffle_dataset")
        return order | {name: getattr(self, name) for name in names}

    def _resolve_device(self):
        """Sets `use_cpu` and `bf16` before TRL's defaults, which would choose bf16 on a CPU too."""
        no_accelerator = not torch.accelerator.is_available()
        self.use_cpu = no_accelerator if self.use_cpu is None else self.use_cpu
        if self.bf16 is None:
            self.bf16 = not self.use_cpu and not self.fp16
        if self.use_cpu and launched_with_deepspeed(self.deepspeed):
            prepare_deepspeed_on_cpu(timedelta(seconds=self.ddp_timeout))

    def _derive_batch(self):
        rule = apply_size(self, SETTINGS[self.method].size(self))
        self.num_generations_eval = 1
        leaves = self.num_generations
        rows = self.per_device_train_batch_size = self.per_device_train_batch_size or leaves
        if rows % leaves:
            raise UserError(
                f"a prompt has {leaves} leaves ({rule}), but per_device_train_batch_size is {rows}: "
                f"set it to a multiple of {leaves}, such as {max(leaves, rows // leaves * leaves)}, so that whole "
                "trees stay together"
            )
        steps, accumulation = self.steps_per_generation, self.gradient_accumulation_steps
        if steps is not None and steps % accumulation:
            raise UserError(
                f"steps_per_generation={steps} must be a multiple of gradient_accumulation_steps={accumulation}, so "
                "that every optimiser step counts the tokens of its own rows"
            )
        if self.generation_batch_size is not None:
            raise UserError("generation_batch_size is derived: set steps_per_generation instead")


_SCALES = {"true": "group", "false": "none"}  # as TRL maps True and False, which a flag gives as text
_NEUTRAL = {
    "top_k": (None, 0),
    "branch_top_k": (None, 0),
    "top_p": (None, 1.0),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
}
