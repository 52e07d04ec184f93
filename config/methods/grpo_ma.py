"""Settings of GRPO-MA (arXiv 2509.24494): K thoughts per prompt, M answers per thought.

The preset follows the paper and its release (K = M = 4, learning rate 1e-5, every process on the same prompt). The
paper's loss is a token mean within each sequence, then a mean over sequences: TRL's loss_type "grpo". Its KL weight is
not published: beta 0 is our choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from config.method_settings import MethodSettings, RolloutSize
from task.errors import UserError


@dataclass
class GRPOMAFields:
    """Fields of `method grpo_ma`."""

    think_num: int = field(default=4, metadata={"help": "K, thoughts per prompt and process, or auto (grpo_ma)."})
    answer_num: int = field(default=4, metadata={"help": "M, answers per thought, or auto (grpo_ma)."})
    max_thought_length: int = field(
        default=384, metadata={"help": "Maximum tokens per thought, end tag included (grpo_ma)."}
    )
    max_answer_length: int = field(default=128, metadata={"help": "Maximum tokens per answer (grpo_ma)."})
    objective: str = field(
        default="auto",
        metadata={
            "help": "split: the loss is a term for thoughts plus one for answers, each normalised over its own tokens "
            "(the paper); joint: one term over all tokens; auto: split if answer_num > 1, else joint (T_K A_1 is then "
            "plain GRPO) (grpo_ma).",
            "choices": ["auto", "split", "joint"],
        },
    )
    thought_weight: float = field(
        default=1.0,
        metadata={
            "help": "Weight of the term for thoughts in the split loss; the term for answers has weight 1 (1: the "
            "paper's sum) (grpo_ma)."
        },
    )
    answer_warmup_steps: int = field(
        default=0,
        metadata={
            "help": "Optimiser steps at the start of training with M = 1 and the joint loss, that is, plain GRPO on K "
            "chains (grpo_ma)."
        },
    )


def size_of(args) -> RolloutSize:
    thought, answer = args.max_thought_length, args.max_answer_length
    return RolloutSize(
        derived={
            "num_generations": (
                args.think_num * args.answer_num,
                f"think_num={args.think_num} * answer_num={args.answer_num}",
            ),
            "max_completion_length": (
                thought + answer,
                f"max_thought_length={thought} + max_answer_length={answer}",
            ),
        }
    )


def check_grpo_ma(args) -> None:
    if args.think_num * args.answer_num < 2:
        raise UserError(
            "think_num=1 and answer_num=1 give a group of one completion, which has no advantage: set think_num or "
            "answer_num to at least 2"
        )
    if args.answer_warmup_steps and args.think_num < 2:
        raise UserError(
            f"answer_warmup_steps={args.answer_warmup_steps} trains on think_num={args.think_num} chains per prompt, "
            "which have no advantage: set think_num to at least 2, or answer_warmup_steps to 0"
        )
    if not math.isfinite(args.thought_weight):
        raise UserError(f"thought_weight={args.thought_weight} must be a finite number of at least 0")
    if args.thought_weight != 1 and (args.objective == "joint" or (args.objective == "auto" and args.answer_num == 1)):
        raise UserError(
            f"thought_weight={args.thought_weight} weighs one of two terms, and the loss of objective="
            f"{args.objective} with answer_num={args.answer_num} has one: leave it out, or set objective to split"
        )
    if args.on_zero_spread == "grow" and args.answer_num == 1:
        raise UserError(
            "on_zero_spread=grow samples further answers below a thought, and answer_num=1 is plain GRPO on whole "
            "completions: set answer_num to at least 2, or on_zero_spread to redraw"
        )
    if args.shared_token_weight == "once":
        raise UserError(
            "shared_token_weight=once is for methods whose rows share tokens in one term; grpo_ma counts each "
            "thought once already: leave it out"
        )
    if args.importance_sampling_level == "sequence" and args.objective == "joint" and args.answer_num > 1:
        raise UserError(
            "importance_sampling_level='sequence' averages the advantages of a thought and its answer away when "
            "objective is 'joint': set objective to split, or importance_sampling_level to token"
        )


SETTINGS = MethodSettings(
    about="K thoughts x M answers",
    preset={"learning_rate": 1e-5, "loss_type": "grpo", "beta": 0.0, "sync_prompt_across_ranks": True},
    size=size_of,
    check=check_grpo_ma,
    fields=GRPOMAFields,
    extends=True,
    at_least={
        "think_num": 1,
        "answer_num": 1,
        "max_thought_length": 1,
        "max_answer_length": 1,
        "answer_warmup_steps": 0,
        "thought_weight": 0,
    },
    shown=(
        "think_num",
        "answer_num",
        "max_thought_length",
        "max_answer_length",
        "objective",
        "thought_weight",
        "answer_warmup_steps",
    ),
)
