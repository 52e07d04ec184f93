"""Training arguments: TRL's GRPOConfig plus what a rollout tree needs, derived before TRL's own checks."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import trl

from config.checks import check_training
from config.distributed import launched_with_deepspeed, prepare_deepspeed_on_cpu
from config.method_settings import apply_preset, apply_size
from config.methods import SETTINGS
from task.errors import UserError

METHOD_FIELDS = [settings.fields for settings in SETTINGS.values() if settings.fields]


@dataclass
class GRPOConfig(*METHOD_FIELDS, trl.GRPOConfig):
    """Arguments of `GRPOMATrainer`. Fields that default to None are derived or taken from the preset of `method`.

    Raises:
        UserError: a value that the method cannot work with, named with the rule and the way out.
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
        metadata={"help": "Text that ends a thought, a closing tag such as </think> or </analysis>."},
    )
    sync_prompt_across_ranks: bool | None = field(
        default=None,
        metadata={
            "help": "True: all processes grow trees of the same prompt and a group spans them (K of the formulas is "
            "processes * think_num). False: a group lives on one process. Default: True for grpo_ma, else False."
        },
    )
    shared_token_weight: str = field(
        default="per_leaf",
        metadata={
            "help": "A token that n leaves share counts n times in the loss (per_leaf: TRL's rows, the published "
            "Tree-GRPO code) or once. In grpo_ma each thought counts once either way.",
            "choices": ["per_leaf", "once"],
        },
    )
    prefix_sharing: str = field(
        default="auto",
        metadata={
            "help": "Compute shared tokens once in the log-prob passes: on, off (one row per leaf), or auto (on "
            "wherever the attention back end takes a tree mask).",
            "choices": ["auto", "on", "off"],
        },
    )
    max_slots: int | None = field(
        default=None,
        metadata={
            "help": "Token slots one packed forward may have, at least one path (prompt and completion); more are cut "
            "between subtrees, which saves memory, not time. Default: no limit."
        },
    )
    max_prompt_length: int = field(
        default=4096, metadata={"help": "Prompt tokens, media included. Longer prompts are never cut."}
    )
    on_long_prompt: str = field(
        default="error",
        metadata={
            "help": "Prompt over max_prompt_length: stop, or skip it (counted and logged).",
            "choices": ["error", "skip"],
        },
    )
    on_bad_media: str = field(
        default="error",
        metadata={
            "help": "Picture or video that cannot be read: stop, or skip it (counted and logged).",
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
            "help": "Loss or gradient that is NaN or infinite: stop, or skip that micro-batch (counted and logged). "
            "With ZeRO-3 or FSDP a loss, and with DeepSpeed a gradient, always stops.",
            "choices": ["stop", "skip"],
        },
    )
    reward_timeout: float = field(
        default=300.0,
        metadata={
            "help": "Seconds a task's reward may take for one completion, and another reward function for all; then "
            "they abstain (counted and logged)."
        },
    )
    rollout_prompts: int | None = field(
        default=None,
        metadata={"help": "Prompts one process grows at a time (memory of the key-value cache). Default: all."},
    )

    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={
            "help": "auto: go on from the newest whole checkpoint of output_dir, or begin if there is none; true: the "
            "same, but there must be one; a folder checkpoint-N: from that one.",
            "aliases": ["--resume"],
        },
    )
    resume_weights_only: bool = field(
        default=False,
        metadata={
            "help": "Take only the weights of the checkpoint and begin at step 0: for another number of processes or "
            "another ZeRO stage, whose optimiser states do not fit."
        },
    )

    num_generations: int | None = field(
        default=None,
        metadata={
            "help": "Leaves per prompt and process. Derived for grpo_ma (think_num * answer_num) and tree_grpo "
            "(tree_num * (expand_rounds * expand_num + 1)); default 8 for grpo, 16 for tree_adv."
        },
    )
    max_completion_length: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of a completion, observations included. Derived for grpo_ma (max_thought_length + "
            "max_answer_length); default 512, for tree_grpo 4096."
        },
    )
    per_device_train_batch_size: int | None = field(
        default=None,
        metadata={"help": "Rows (leaves) per micro-batch, a multiple of num_generations. Default: one tree."},
    )
    learning_rate: float | None = field(
        default=None, metadata={"help": "Default: the method's preset (1e-5; tree_grpo 1e-6)."}
    )
    loss_type: str | None = field(
        default=None, metadata={"help": "TRL's loss type. Default: the method's preset (grpo)."}
    )
    beta: float | None = field(
        default=None, metadata={"help": "KL coefficient. Default: the method's preset (0; tree_grpo 0.001)."}
    )
    router_aux_loss_coef: float | None = field(
        default=0.0, metadata={"help": "Must stay 0: the load-balancing loss of experts is not computed on trees."}
    )
    use_cpu: bool | None = field(default=None, metadata={"help": "Default: True where no accelerator is visible."})
    ddp_timeout: int = field(
        default=7200,
        metadata={
            "help": "Seconds a process waits for the others. Rollouts and rewards of unequal length, slow disks and "
            "evaluation all count, so it is long; a process that died is noticed by the launcher, not by this."
        },
    )
    data_seed: int | None = field(
        default=42, metadata={"help": "Seed of the prompt order; model and rollouts use `seed`."}
    )

    def __post_init__(self):
        check_training(self)
        self.from_preset = apply_preset(self, SETTINGS[self.method].preset)
        self._resolve_device()
        self._derive_batch()
        stated = self.greater_is_better
        super().__post_init__()
        self.greater_is_better = stated  # the library guesses it from the name; the trainer asks the task
        assert self.world_size == int(os.environ.get("WORLD_SIZE", "1")), (
            "the launcher and accelerate disagree on the world size"
        )
        metric = self.metric_for_best_model
        if metric is not None and "/" not in metric:
            raise UserError(
                f"metric_for_best_model={metric}: evaluation gives no such metric; name a task's, as the log does, "
                "such as trajectory-sharerobot/accuracy"
            )
        if self.window > 1 and self.answer_warmup_steps % self.window:
            raise UserError(
                f"answer_warmup_steps={self.answer_warmup_steps} ends inside a generation, which serves {self.window} "
                f"optimiser steps: set it to a multiple of {self.window}"
            )
        if self.loss_type == "cispo" and self.epsilon_high is None:
            warnings.warn(
                f"loss_type cispo caps the ratio at epsilon_high, which without a value is epsilon={self.epsilon}: "
                "every token then gets a fraction of its gradient; set epsilon_high (5 is usual)",
                stacklevel=3,
            )
        shaped = [f"{name}={getattr(self, name)}" for name, no in _NEUTRAL.items() if getattr(self, name) not in no]
        if shaped:
            warnings.warn(
                f"{', '.join(shaped)}: rollouts are then drawn from another distribution than the one that is trained; "
                "the log shows by how much as sampling/policy_gap",
                stacklevel=3,
            )

    @property
    def leaves(self) -> int:
        """Rows one tree gives outside the answer warm-up."""
        return self.num_generations

    @property
    def window(self) -> int:
        """Optimiser steps that one generation serves."""
        return self.steps_per_generation * self.num_iterations // self.gradient_accumulation_steps

    def _resolve_device(self):
        """`use_cpu` and `bf16` before TRL's defaults, which would take bf16 on a CPU too."""
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


_NEUTRAL = {"top_k": (None, 0), "top_p": (None, 1.0), "min_p": (None, 0.0), "repetition_penalty": (None, 1.0)}
