"""Fine-tunes a model to the format `<think>thought</think><answer>answer</answer>` on the manifests that RL uses.

    python scripts/train/sft.py --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --dataset data.yaml \\
        --output_dir runs/sft --num_train_epochs 1 --per_device_train_batch_size 4 --learning_rate 1e-4

Every record needs a `thought` (a string) besides its question and answer; with `--empty_thought`, records without one
get an empty thought. The answer is first converted to the task's frame (for a `processed` one, the model's own scale)
and rounded to integers; a target that the task's own format reward does not accept is refused. The loss covers only the
completion and the end-of-turn token; in an optimizer step it is the mean over all these tokens, however they are split
into micro-batches and processes. `--resume_from_checkpoint auto` follows the rules of train.py (docs/training.md).

LoRA (rank 64, language model only) is the default; `--lora_rank 0` trains all weights of the language model, with
`--freeze_vision false` the vision tower's too. All flags of transformers.TrainingArguments work. The output folder
contains the adapter (or the model) and the processor, for --adapter_path (or --model_name_or_path) of
scripts/eval/eval.py and train.py. On several GPUs: `torchrun --nproc_per_node N
scripts/train/sft.py ...`.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import locate, use_checkout

ROOT = use_checkout()

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments, set_seed

from config.console import quiet_libraries
from config.output import (
    already_through,
    begin_in,
    check_no_later,
    check_reporters,
    checkpoint_to_resume,
    make_output,
    steps_left,
)
from config.parser import RecipeParser
from config.ranges import check_library_ranges
from dataset.dataset_grpo import build_dataset, load_media, read_row
from dataset.manifest import print_sources, read_manifests
from model.loading import coordinate_frame_of, load_policy
from task.errors import UserError, library_refusals
from task.own_tasks import use_task_dir
from task.parsing.answers import thought_tags
from task.rewards.router import reward_arguments
from task.task_loader import MODEL_FRAMES, Task, load_tasks
from trainer.arguments import check_opened_thought
from trainer.run.checkpoints import WholeCheckpoints
from trainer.run.faults import StepError
from trainer.run.layout import LayoutCheck
from trainer.run.precision import train_in_float32

IGNORED = -100


@dataclass
class SFTArguments:
    """Model and data of a warm start."""

    model_name_or_path: str = field(metadata={"help": "model to start from"})
    dataset: list[str] = field(metadata={"help": "one or more YAML manifests"})
    task_dir: str | None = field(default=None, metadata={"help": "folder of your own task files (or GRPO_MA_TASKS)"})
    image_root: str | None = field(default=None, metadata={"help": "folder that relative media paths start from"})
    thought_end: str = field(default="</think>", metadata={"help": "closing tag of a thought"})
    empty_thought: bool = field(default=False, metadata={"help": "give records without a thought an empty one"})
    lora_rank: int = field(default=64, metadata={"help": "LoRA rank, alpha is twice it; 0: full fine-tuning"})
    freeze_vision: bool = field(default=True, metadata={"help": "with --lora_rank 0: keep the vision tower frozen"})
    dtype: str | None = field(
        default=None, metadata={"help": "dtype of the weights; default bfloat16 for LoRA on a GPU, else float32"}
    )
    coordinate_frame: str | None = field(
        default=None,
        metadata={"help": "scale of the model's coordinates (default: the family's)", "choices": list(MODEL_FRAMES)},
    )
    chat_template_kwargs: str | None = field(
        default=None, metadata={"help": "JSON object of switches of the chat template"}
    )
    max_pixels: int | None = field(
        default=None, metadata={"help": "maximum pixels per picture after resizing (default: the processor's)"}
    )
    min_pixels: int | None = field(default=None, metadata={"help": "minimum pixels per picture after resizing"})


@dataclass
class SFTTrainingArguments(TrainingArguments):
    """transformers.TrainingArguments with the defaults of a LoRA warm start."""

    learning_rate: float = field(default=1e-4, metadata={"help": "peak learning rate"})
    logging_steps: float = field(default=5, metadata={"help": "steps between two lines of the log"})
    bf16: bool | None = field(default=None, metadata={"help": "bfloat16 mixed precision; default: on a GPU"})
    remove_unused_columns: bool = field(default=False, metadata={"help": "must stay false: the rows are raw records"})

    def __post_init__(self) -> None:
        if self.bf16 is None:
            self.bf16 = torch.cuda.is_available() and not self.fp16
        super().__post_init__()
        check_library_ranges(self)

    @property
    def data_order(self) -> dict:
        """What a step's place in the data follows from, beside the seeds and the number of records."""
        rows = self.per_device_train_batch_size * self.gradient_accumulation_steps
        return {"records per process and step": rows, "dataloader_drop_last": self.dataloader_drop_last}


def check_thoughts(rows, empty_thought: bool, thought_end: str) -> None:
    """Raises UserError for the first record whose thought is missing, is not a string, or contains the closing tag."""
    for row in rows:
        record = read_row(row)
        thought = record["extra"].get("thought")
        if thought is None and not empty_thought:
            raise UserError(f"record {record['id']!r} has no thought: add one, or pass --empty_thought.")
        if thought is not None and (not isinstance(thought, str) or thought_end in thought):
            raise UserError(f"record {record['id']!r}: its thought must be a string without {thought_end} in it.")


def target_text(record: dict, task: Task, image_size, processed_size) -> str:
    """The target completion of a record, without the end-of-turn token.

    Raises:
        UserError: the task's own format reward of it is not 1.
    """
    sol, keywords = reward_arguments(task, record, image_size, processed_size)
    sol = sol if task.config["frame"] == "none" else _integers(sol)
    answer = sol if isinstance(sol, str) else json.dumps(sol, ensure_ascii=False)
    opening, closing = thought_tags(task.thought_end)
    text = f"{opening}{record['extra'].get('thought') or ''}{closing}<answer>{answer}</answer>"
    if task.format_reward(text, sol, **keywords) != 1.0:
        raise UserError(
            f"record {record['id']!r}: the format reward of {task.path} does not accept the target {text!r}; "
            "correct the record's thought or answer."
        )
    return text


def _integers(value):
    # Coordinates become integers; labels and other strings stay.
    if isinstance(value, dict):
        return {key: _integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integers(item) for item in value]
    return round(value) if isinstance(value, float) else value


@dataclass
class Collator:
    """Rows -> a right-padded batch with explicit positions, media of all rows, and labels on the completion only."""

    module: object
    tokenizer: object
    tasks: dict[str, Task]

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        prompts, completions = [], []
        for row in rows:
            record = read_row(row)
            media = load_media(record)
            try:
                prompt = self.module.encode(record["messages"], *media)
            except ValueError as error:
                raise UserError(f"record {record['id']!r}: {error}") from error
            sizes = (prompt.image_sizes[:1] or [None])[0], (prompt.processed_sizes[:1] or [None])[0]
            text = target_text(record, self.tasks[record["question_type"]], *sizes)
            text = text.removeprefix(self.module.opened_thought.strip())  # the prompt ends with it
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            prompts.append(prompt)
            completions.append([*ids, self.tokenizer.eos_token_id])
        return self._pad(prompts, completions) | self.module.batch_media(prompts)

    def _pad(self, prompts: list, completions: list[list[int]]) -> dict[str, torch.Tensor]:
        # B rows, T tokens, P prompt tokens per row; M-RoPE positions have a leading axis of 3.
        b = len(prompts)
        t = max(len(p.ids) + len(c) for p, c in zip(prompts, completions, strict=True))
        input_ids = torch.full((b, t), self.tokenizer.pad_token_id)
        labels = torch.full((b, t), IGNORED)
        attention_mask = torch.zeros((b, t), dtype=torch.long)
        position_ids = torch.zeros((*prompts[0].position_ids.shape[:-1], b, t), dtype=torch.long)
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            p, end = len(prompt.ids), len(prompt.ids) + len(completion)
            input_ids[i, :end] = torch.tensor([*prompt.ids, *completion])
            labels[i, p:end] = torch.tensor(completion)
            attention_mask[i, :end] = 1
            position_ids[..., i, :p] = prompt.position_ids
            position_ids[..., i, p:end] = prompt.next_position + torch.arange(len(completion))
        return {
            "input_ids": input_ids,
            "labels": labels,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
        }


class WarmStart(WholeCheckpoints, Trainer):
    """transformers.Trainer whose loss is the mean over an optimizer step's tokens, with complete checkpoints."""

    def __init__(self, module, model, training: SFTTrainingArguments, **kwargs):
        super().__init__(model, training, compute_loss_func=self._token_mean, **kwargs)
        train_in_float32(self.model, training)
        self.module, self.memory = module, {}
        self.add_callback(LayoutCheck(self))

    def _token_mean(self, outputs, labels, num_items_in_batch=None) -> torch.Tensor:
        """Summed cross-entropy of a micro-batch, over the trained tokens of the step on all processes."""
        learnt = labels[:, 1:] != IGNORED
        total = F.cross_entropy(outputs.logits[:, :-1][learnt].float(), labels[:, 1:][learnt], reduction="sum")
        loss = total / (learnt.sum() if num_items_in_batch is None else num_items_in_batch)
        if not torch.isfinite(loss):
            raise StepError(
                f"step {self.state.global_step + 1}: the loss is {loss.item():g}; nothing was trained on it: lower "
                "learning_rate, and go on from an earlier checkpoint"
            )
        return loss


def build_trainer(args: SFTArguments, training: SFTTrainingArguments) -> WarmStart:
    """The trainer, ready to run. UserError for a user's mistake."""
    set_seed(training.seed)
    frame = coordinate_frame_of(args.model_name_or_path, given=args.coordinate_frame)
    tasks = load_tasks(thought_end=args.thought_end, coordinate_frame=frame)
    seed = training.data_seed if training.data_seed is not None else training.seed
    if training.process_index == 0:
        print_sources(read_manifests(args.dataset, args.image_root))
    rows = build_dataset(args.dataset, tasks, seed=seed, image_root=args.image_root)
    check_thoughts(rows, args.empty_thought, args.thought_end)
    module, model, processor = load_policy(
        args.model_name_or_path,
        dtype=args.dtype or ("bfloat16" if torch.cuda.is_available() and args.lora_rank else "float32"),
        attn_implementation="sdpa",
        min_pixels=args.min_pixels,
        max_pixels=args.max_pixels,
        coordinate_frame=frame,
        chat_template_kwargs=args.chat_template_kwargs,
    )
    check_opened_thought(args.thought_end, module)
    if args.lora_rank:
        targets = module.lora_target_modules(model)
        lora = LoraConfig(
            r=args.lora_rank, lora_alpha=2 * args.lora_rank, target_modules=targets, task_type="CAUSAL_LM"
        )
        with library_refusals(ValueError, ImportError):
            model = get_peft_model(model, lora)
    else:
        module.freeze(model, args.freeze_vision)
    collator = Collator(module, getattr(processor, "tokenizer", processor), tasks)
    if training.n_gpu > 1:  # DataParallel would split the pictures of a batch
        training._n_gpu = 1
    with library_refusals(ValueError, ImportError):
        return WarmStart(
            module, model, training, data_collator=collator, train_dataset=rows, processing_class=processor
        )


def main(argv: list[str] | None = None) -> int:
    quiet_libraries()
    args, training = RecipeParser((SFTArguments, SFTTrainingArguments)).parse(argv)
    try:
        use_task_dir(args.task_dir)
        make_output(training.output_dir)
        check_reporters(training.report_to)
        args.dataset = [locate(path) for path in args.dataset]
        args.model_name_or_path = locate(args.model_name_or_path)
        checkpoint = checkpoint_to_resume(training.resume_from_checkpoint, training.output_dir)
        check_no_later(training.output_dir, checkpoint)
        with training.main_process_first(local=False):
            begin_in(training.output_dir, checkpoint, training.resume_from_checkpoint)
        if checkpoint and not steps_left(checkpoint, training.max_steps, training.num_train_epochs):
            already_through(checkpoint, training)
            return 0
        trainer = build_trainer(args, training)
        fault = checkpoint and trainer.resume_fault(checkpoint)
        if fault:
            raise UserError(f"{checkpoint}: {fault}: go on as it was started, or begin anew in another output_dir")
        with library_refusals(ValueError, TypeError, ImportError, checking=lambda: trainer.lr_scheduler is None):
            trainer.train(resume_from_checkpoint=checkpoint)
        if trainer.state.global_step == 0:
            raise UserError("no step was trained, nothing is saved: raise max_steps or num_train_epochs")
        trainer.save_final()
    except (UserError, OSError) as error:
        print(f"sft.py: {error}", file=sys.stderr)
        return 2
    if trainer.is_world_process_zero():
        print(f"saved to {training.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
