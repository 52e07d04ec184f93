"""Fine-tunes a model to the format `<think>thought</think><answer>answer</answer>` on the manifests that RL uses.

    python scripts/train/sft.py --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --dataset_name data.yaml \\
        --output_dir runs/sft --num_train_epochs 1 --per_device_train_batch_size 4 --learning_rate 1e-4

Every record needs a `thought` (a string) besides its question and answer; with `--empty_thought`, records without one
get an empty thought. The answer is first converted to the task's frame (for a `processed` one, the model's own scale)
and rounded to integers; a target that the task's own format reward does not accept is refused. The loss covers only the
completion and the end-of-turn token; in an optimizer step it is the mean over all these tokens, however they are split
into micro-batches and processes. `--resume auto` follows the rules of train.py (docs/training.md).

Model and data have the same flags as in train.py. LoRA (rank 64, language model only) is the default; `--use_peft
false` trains all weights of the language model, and with `--freeze_vision false` the vision tower's too. A model of
less than 100 MB, such as the demo's, is trained with all weights, at a higher rate and for at least 100 steps, unless
flags say otherwise. All flags of transformers.TrainingArguments work. The output folder contains the adapter (or the
model) and the processor, for --adapter_path (or --model_name_or_path) of scripts/eval/eval.py and train.py. On several
GPUs: `torchrun --nproc_per_node N scripts/train/sft.py ...`.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import locate, use_checkout

ROOT = use_checkout()

import torch
import torch.nn.functional as F
from peft import get_peft_model
from transformers import Trainer, set_seed

from config.console import quiet_libraries
from config.output import (
    already_through,
    begin_in,
    check_no_later,
    check_output,
    check_reporters,
    checkpoint_to_resume,
    make_output,
    steps_left,
)
from config.parser import RecipeParser
from config.warm_start import WarmStartArguments, WarmStartModelConfig, WarmStartTraining, fit_to_size
from dataset.dataset_grpo import build_dataset, load_media, read_row
from dataset.manifest import print_sources, read_manifests
from model.loading import coordinate_frame_of, load_policy
from task.errors import UserError, library_refusals
from task.own_tasks import use_task_dir
from task.parsing.answers import thought_tags
from task.rewards.router import reward_arguments
from task.task_loader import Task, load_tasks
from trainer.arguments import check_opened_thought
from trainer.logs.progress import show_short_progress
from trainer.run.checkpoints import WholeCheckpoints
from trainer.run.faults import StepError
from trainer.run.layout import LayoutCheck
from trainer.run.precision import cast_frozen, dtype_to_load, train_in_float32

IGNORED = -100


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
        rows = self._pad(prompts, completions)
        return rows | self.module.batch_media(prompts) | self.module.token_types(rows["input_ids"])

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

    def __init__(self, module, model, training: WarmStartTraining, **kwargs):
        super().__init__(model, training, compute_loss_func=self._token_mean, **kwargs)
        train_in_float32(self.model, training)
        self.module, self.memory = module, {}
        self.add_callback(LayoutCheck(self))
        show_short_progress(self)

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


def load_rows(args: WarmStartArguments, training: WarmStartTraining, tasks: dict):
    """(training rows, held-out rows or None), whose thoughts are checked."""
    paths = [[locate(path) for path in names] for names in (args.dataset_name, args.eval_dataset_name)]
    if not paths[0]:
        raise UserError("no training data: give --dataset_name MANIFEST.yaml, or a record file (metadata/README.md)")
    if training.eval_strategy != "no" and not paths[1]:
        raise UserError(
            f"eval_strategy={training.eval_strategy.value} needs held-out records: give --eval_dataset_name"
        )
    seed = training.data_seed if training.data_seed is not None else training.seed
    if training.process_index == 0:
        print_sources(read_manifests(paths[0] + paths[1], args.image_root))
    built = [build_dataset(names, tasks, seed=seed, image_root=args.image_root) if names else None for names in paths]
    for rows in filter(None, built):
        check_thoughts(rows, args.empty_thought, args.thought_end)
    return built


def build_trainer(
    args: WarmStartArguments, model_args: WarmStartModelConfig, training, tasks, frame, rows
) -> WarmStart:
    """The trainer, ready to run. UserError for a user's mistake."""
    set_seed(training.seed)
    dtype = model_args.resolve_dtype(training.bf16)
    module, model, processor = load_policy(
        model_args.model_name_or_path,
        adapter_path=model_args.adapter_path and locate(model_args.adapter_path),
        dtype=dtype_to_load(dtype, training, adapter=model_args.use_peft),
        trainable=True,
        **model_args.loading(frame, args.chat_template_kwargs, training.trust_remote_code)
        | {"attn_implementation": model_args.attn_implementation or "sdpa"},
    )
    make_output(training.output_dir)  # not before: a wrong path of a model leaves no folder behind
    check_opened_thought(args.thought_end, module)
    module.freeze(model, model_args.freeze_vision)
    if not model_args.use_peft:
        cast_frozen(model, dtype)
    elif not model_args.adapter_path:
        with library_refusals(ValueError, ImportError):
            model = get_peft_model(model, model_args.lora(module, model))
    collator = Collator(module, getattr(processor, "tokenizer", processor), tasks)
    if training.n_gpu > 1:  # DataParallel would split the pictures of a batch
        training._n_gpu = 1
    training.prediction_loss_only = True
    with library_refusals(ValueError, ImportError):
        return WarmStart(
            module,
            model,
            training,
            data_collator=collator,
            train_dataset=rows[0],
            eval_dataset=rows[1],
            processing_class=processor,
        )


def main(argv: list[str] | None = None) -> int:
    quiet_libraries()
    parser = RecipeParser((WarmStartArguments, WarmStartModelConfig, WarmStartTraining))
    args, model_args, training = parser.parse(argv)
    if parser.dry_run:
        print("dry run: names, types and ranges hold; device, data and hub were not looked at")
        return 0
    try:
        status = run(args, model_args, training, parser.provenance)
    except (UserError, OSError) as error:
        print(f"sft.py: {error}", file=sys.stderr)
        return 2
    return status


def run(args, model_args, training, given) -> int:
    """Trains and saves; 0. UserError or OSError for a user's mistake."""
    use_task_dir(args.task_dir)
    check_output(training.output_dir)
    check_reporters(training.report_to)
    model_args.model_name_or_path = locate(model_args.model_name_or_path)
    source = {"revision": model_args.model_revision, "trust_remote_code": training.trust_remote_code}
    frame = coordinate_frame_of(model_args.model_name_or_path, given=model_args.coordinate_frame, **source)
    tasks = load_tasks(thought_end=args.thought_end, coordinate_frame=frame)
    rows = load_rows(args, training, tasks)
    fitted = fit_to_size(model_args, training, len(rows[0]), given)
    if fitted and training.process_index == 0:
        print(f"defaults for a model of less than 100 MB: {', '.join(fitted)}")
    checkpoint = checkpoint_to_resume(training.resume_from_checkpoint, training.output_dir)
    check_no_later(training.output_dir, checkpoint)
    with training.main_process_first(local=False):
        begin_in(training.output_dir, checkpoint, training.resume_from_checkpoint)
    if checkpoint and not steps_left(checkpoint, training.max_steps, training.num_train_epochs):
        already_through(checkpoint, training)
        return 0
    trainer = build_trainer(args, model_args, training, tasks, frame, rows)
    fault = checkpoint and trainer.resume_fault(checkpoint)
    if fault:
        raise UserError(f"{checkpoint}: {fault}: go on as it was started, or begin anew in another output_dir")
    with library_refusals(ValueError, TypeError, ImportError, checking=lambda: trainer.lr_scheduler is None):
        trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.state.global_step == 0:
        raise UserError("no step was trained, nothing is saved: raise max_steps or num_train_epochs")
    trainer.save_final(" ".join(args.dataset_name))
    if trainer.is_world_process_zero():
        name = "adapter_path" if model_args.use_peft else "model_name_or_path"
        print(f"saved to {training.output_dir}, for --{name} of training and evaluation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
