"""Arguments of train.py besides the training and model arguments."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class GRPOScriptArguments:
    """The data of a run."""

    dataset_name: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Training manifests or record files (metadata/README.md); several are mixed.",
            "aliases": ["--dataset"],
        },
    )
    eval_dataset_name: list[str] = field(
        default_factory=list, metadata={"help": "Held-out manifests for eval_strategy.", "aliases": ["--eval_dataset"]}
    )
    image_root: str | None = field(
        default=None, metadata={"help": "Folder for relative media paths, instead of the manifest's data_root."}
    )
    task_dir: str | None = field(
        default=None, metadata={"help": "Folder of your own task files, added to the shipped ones (or GRPO_MA_TASKS)."}
    )
    extra_reward: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Your own reward functions beside the tasks', as MODULE:FUNCTION (docs/training.md); modules may "
            "lie in the working folder or in task_dir."
        },
    )
    rollout_budget: float | None = field(
        default=None,
        metadata={
            "help": "Sampled tokens per prompt within which think_num auto and answer_num auto are chosen. Default: "
            "those of 4 thoughts with 4 answers each (grpo_ma)."
        },
    )
    budget_check: int = field(
        default=0,
        metadata={
            "help": "Every so many generations, print whether another think_num and answer_num would have a smaller "
            "error of the gradient for the same tokens; 0: never (grpo_ma)."
        },
    )
    print_prompt: bool = field(default=True, metadata={"help": "Show one rendered prompt at start-up."})
