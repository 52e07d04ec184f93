"""The rows and columns of layout_matrix.py's table."""

from __future__ import annotations

from dataclasses import dataclass

# processes, DeepSpeed file or FSDP2
FSDP2 = "fsdp2"
LAYOUTS = {
    "1 process": (1, None),
    "2 DDP": (2, None),
    "2 ZeRO-2": (2, "zero2.json"),
    "2 ZeRO-3": (2, "zero3.json"),
    "2 FSDP2": (2, FSDP2),
}


@dataclass(frozen=True)
class Case:
    """Eight trees per optimiser step over all processes; in the spread case four, with twice the thoughts.

    Attributes:
        micro_batches: micro-batches per optimiser step and process.
        spread: the thoughts of each prompt are spread over the processes.
        rate: learning rate, with Adam's usual epsilon; None: one that moves every weight far.
        bf16: mixed precision on weights loaded in bfloat16.
    """

    name: str
    prefix_sharing: str = "on"
    loss_type: str = "grpo"
    micro_batches: int = 1
    spread: bool = False
    lora: bool = True
    rate: float | None = None
    bf16: bool = False

    @property
    def kind(self) -> tuple:
        """Cases of the same kind must end with the same weights."""
        return self.loss_type, self.spread, self.lora


CASES = [
    Case("LoRA packed grpo"),
    Case("LoRA dense grpo", prefix_sharing="off"),
    Case("LoRA packed dapo", loss_type="dapo"),
    Case("LoRA dense dapo", prefix_sharing="off", loss_type="dapo"),
    Case("LoRA packed dapo, 2 micro-batches", loss_type="dapo", micro_batches=2),
    Case("LoRA packed dapo, 4 micro-batches", loss_type="dapo", micro_batches=4),
    Case("LoRA packed grpo, thoughts over processes", spread=True),
    Case("full packed grpo", lora=False),
    Case("full dense grpo", prefix_sharing="off", lora=False),
    Case("full packed dapo, 2 micro-batches", loss_type="dapo", micro_batches=2, lora=False),
]
# How many weights move at a usual rate for full fine-tuning, in float32 and in bfloat16.
RATES = [
    Case("full float32 at 1e-5", lora=False, rate=1e-5),
    Case("full bfloat16 at 1e-5", lora=False, rate=1e-5, bf16=True),
]


def settings(case: Case, processes: int) -> dict:
    """Training arguments of a case on a number of processes."""
    spans = processes if case.spread else 1  # number of processes that a group spans
    think_num, answer_num, prompts = (4 // spans, 2, 4) if case.spread else (2, 2, 8)
    trees = prompts * spans // processes  # per process and optimiser step
    return {
        "method": "grpo_ma",
        "think_num": think_num,
        "answer_num": answer_num,
        "max_thought_length": 12,
        "max_answer_length": 6,
        "sync_prompt_across_ranks": case.spread,
        "per_device_train_batch_size": trees // case.micro_batches * think_num * answer_num,
        "gradient_accumulation_steps": case.micro_batches,
        "prefix_sharing": case.prefix_sharing,
        "loss_type": case.loss_type,
        "beta": 0.04,
        "bf16": case.bf16,
        "learning_rate": case.rate or (1e-2 if case.lora else 1e-3),
        "lr_scheduler_type": "constant",
        "adam_epsilon": 1e-8 if case.rate else 1e-3,
        "max_steps": 3,
    }
