"""Arguments of the warm start, scripts/train/sft.py: train.py's names, and defaults that follow the model's size."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import TrainingArguments

from config.model_config import GRPOModelConfig
from config.ranges import check_library_ranges
from dataset.manifest import CHECKOUT
from task.errors import UserError

SMALL = 100 * 2**20  # bytes of weights; a model below it trains in seconds, and an adapter on it learns little
SMALL_RATE, SMALL_STEPS = 2e-3, 100


@dataclass
class WarmStartArguments:
    """The data of a warm start."""

    dataset_name: list[str] = field(
        default_factory=list,
        metadata={"help": "Manifests or record files with thoughts; several are mixed.", "aliases": ["--dataset"]},
    )
    eval_dataset_name: list[str] = field(
        default_factory=list,
        metadata={"help": "Held-out manifests for eval_strategy: their loss is logged.", "aliases": ["--eval_dataset"]},
    )
    image_root: str | None = field(default=None, metadata={"help": "Folder for relative media paths."})
    task_dir: str | None = field(default=None, metadata={"help": "Folder of your own task files (or GRPO_MA_TASKS)."})
    thought_end: str = field(default="</think>", metadata={"help": "Text that ends a thought."})
    empty_thought: bool = field(default=False, metadata={"help": "Give records without a thought an empty one."})
    chat_template_kwargs: str | None = field(
        default=None, metadata={"help": "JSON object of switches of the chat template."}
    )


@dataclass
class WarmStartModelConfig(GRPOModelConfig):
    """The model; LoRA as in train.py, but all weights of a small model."""

    use_peft: bool | None = field(
        default=None,
        metadata={"help": "LoRA (true) or all weights (false). Default: LoRA, unless the weights are below 100 MB."},
    )
    lora_rank: int | None = field(
        default=None, metadata={"help": "Older name: N for lora_r N and lora_alpha 2N, 0 for use_peft false."}
    )

    def __post_init__(self):
        if self.lora_rank:
            self.use_peft, self.lora_r, self.lora_alpha = True, self.lora_rank, 2 * self.lora_rank
        elif self.lora_rank == 0:
            self.use_peft = False
        if self.use_peft is None:
            self.use_peft = self.adapter_path is not None or not is_small(self.model_name_or_path)
        super().__post_init__()
        if self.load_in_4bit or self.load_in_8bit:
            raise UserError("the warm start trains on unquantised weights: leave load_in_4bit and load_in_8bit out")


@dataclass
class WarmStartTraining(TrainingArguments):
    """transformers.TrainingArguments with the defaults of a LoRA warm start."""

    learning_rate: float = field(
        default=1e-4, metadata={"help": f"Peak learning rate. Below 100 MB of weights: {SMALL_RATE:g}."}
    )
    num_train_epochs: float = field(
        default=3.0,
        metadata={"help": f"Epochs. Below 100 MB of weights: at least as many as {SMALL_STEPS} steps take."},
    )
    logging_steps: float = field(default=5, metadata={"help": "Steps between two lines of the log."})
    bf16: bool | None = field(default=None, metadata={"help": "bfloat16 mixed precision; default: on a GPU."})
    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={
            "help": "auto: resume from the latest complete checkpoint in output_dir, or start anew; true: there must "
            "be one; or a folder checkpoint-N.",
            "aliases": ["--resume"],
        },
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "Let the model's own code from the hub run."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Must stay false: the rows are raw records."})

    def __post_init__(self) -> None:
        if self.bf16 is None:
            self.bf16 = torch.cuda.is_available() and not self.fp16
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False
        super().__post_init__()
        check_library_ranges(self)

    @property
    def data_order(self) -> dict:
        """What determines the position of a step in the data, besides the seeds and the number of records."""
        rows = self.per_device_train_batch_size * self.gradient_accumulation_steps
        return {"records per process and step": rows, "dataloader_drop_last": self.dataloader_drop_last}


def is_small(model: str | None) -> bool:
    """Whether a folder holds less than `SMALL` bytes of weights."""
    folder = next((path for path in (Path(model), CHECKOUT / model) if path.is_dir()), None) if model else None
    weights = [file.stat().st_size for file in folder.glob("*.safetensors")] if folder else []
    return 0 < sum(weights) < SMALL


def fit_to_size(model: GRPOModelConfig, training: WarmStartTraining, records: int, given: Container[str]) -> list[str]:
    """Sets what was not given to the values for a small model, and returns "name value" of each; [] for another model.

    A model of a few million weights needs a higher rate and more steps than the adapter of a large one.
    """
    if not is_small(model.model_name_or_path):
        return []
    values = {} if "learning_rate" in given else {"learning_rate": SMALL_RATE}
    per_step = training.per_device_train_batch_size * training.gradient_accumulation_steps * training.world_size
    if training.max_steps <= 0 and "num_train_epochs" not in given:
        values["num_train_epochs"] = max(training.num_train_epochs, math.ceil(SMALL_STEPS * per_step / records))
    for name, value in values.items():
        setattr(training, name, value)
    chosen = {"use_peft": model.use_peft} | values if not {"use_peft", "lora_rank"} & set(given) else values
    return [f"{name} {value}" for name, value in chosen.items()]
