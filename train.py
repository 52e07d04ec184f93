"""Trains a model with rollout trees: recipe and flags -> data -> model -> trainer -> checkpoint.

    python train.py --config config/recipes/grpo_ma_demo.yaml --output_dir runs/demo

On several GPUs: bash scripts/run_grpo_lora.sh (see scripts/README.md). A user's mistake ends with one sentence and exit
status 2.
"""

import sys
import warnings
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))
from _root import locate, use_checkout

sys.path.append(str(use_checkout() / "scripts"))
warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # TRL's name for checkpointing

from report.tracked import TrackedReport

from config.agents import parse_environment_args
from config.console import one_sentence_after_ctrl_c, quiet_libraries
from config.grpo_config import GRPOConfig
from config.model_config import GRPOModelConfig
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
from config.parser import OF_THE_MACHINE, RecipeParser
from config.ranges import check_weight_count
from config.script_arguments import GRPOScriptArguments
from config.startup import print_costs, print_model, print_prompt, print_run, print_settings
from dataset.dataset_grpo import build_dataset, first_records, read_row
from dataset.manifest import print_sources, read_manifests
from model.loading import coordinate_frame_of, load_policy, trainable_report
from task.errors import UserError, library_refusals
from task.own_tasks import use_task_dir
from task.rewards.own_rewards import load_rewards
from task.rewards.record_check import check_record
from task.rewards.router import task_rewards
from task.rewards.self_test import check_rewards
from task.task_loader import load_tasks
from trainer.budget.choice import check_budget, choose_sizes
from trainer.budget.recheck import Recheck
from trainer.engines.batch_forward import forking_cost
from trainer.grpo_ma_trainer import GRPOMATrainer
from trainer.logprobs.tree_attention import attention_by_tower
from trainer.methods import METHODS
from trainer.policies.agent.build import check_agents
from trainer.run.checkpoints import CheckpointError
from trainer.run.precision import cast_frozen, dtype_to_load, dtypes_of


def main() -> None:
    quiet_libraries()
    choose = partial(choose_sizes, locate=locate)
    parser = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig), choose)
    script, args, model_args = parser.parse()
    try:
        check_budget(script, args, parser.provenance)
        if parser.dry_run:
            print_settings(args, parser.provenance, without=OF_THE_MACHINE)
            return print("dry run: names, types and the method's rules hold; device, data and hub were not looked at")
        use_task_dir(script.task_dir)
        checkpoint = checkpoint_to_resume(args.resume_from_checkpoint, args.output_dir)
        check_no_later(args.output_dir, checkpoint, args.resume_weights_only)
        if checkpoint and args.resume_weights_only:
            start_from(checkpoint, args, model_args)
            checkpoint = None
        with args.main_process_first(local=False):
            begin_in(args.output_dir, checkpoint, args.resume_from_checkpoint)
        if checkpoint and not steps_left(checkpoint, args.max_steps, args.num_train_epochs):
            return already_through(checkpoint, args)
        trainer = build(script, args, model_args, parser.provenance)
        if script.budget_check:
            trainer.add_callback(Recheck(args, script.budget_check))
        fault = checkpoint and trainer.resume_fault(checkpoint)
        if fault:
            raise UserError(
                f"{checkpoint}: {fault}: go on as it was started, or take its weights alone into another output_dir "
                f"with --resume {checkpoint} --resume_weights_only true"
            )
    except UserError as error:
        parser.error(str(error))
    if checkpoint and trainer.accelerator.is_main_process:
        print(f"going on from {checkpoint}", flush=True)
    try:
        with library_refusals(ValueError, TypeError, ImportError, checking=lambda: trainer.lr_scheduler is None):
            trainer.train(resume_from_checkpoint=checkpoint)
    except UserError as error:
        parser.error(str(error))
    skipped = trainer.encoder.skipped
    failed = [entry["rollout/failed_share"] for entry in trainer.state.log_history if "rollout/failed_share" in entry]
    if failed and min(failed) == 1:
        parser.error(f"nothing was trained or saved: {why_nothing(skipped, trainer.state.log_history)}")
    if trainer.outcome.nothing_scored:
        parser.error(f"nothing was trained or saved: {trainer.outcome.sentence()}")
    try:
        trainer.save_final(" ".join(script.dataset_name))
        if args.push_to_hub:
            trainer.push_to_hub(dataset_name=" ".join(script.dataset_name))
    except CheckpointError as error:
        parser.error(str(error))
    if trainer.stopping.stopped and trainer.accelerator.is_main_process:
        print(f"stopped by SIGTERM after step {trainer.state.global_step}: --resume auto goes on from its checkpoint")
    if trainer.accelerator.is_main_process:
        print(f"saved to {args.output_dir}" + (f"; {len(skipped)} prompts were skipped" if skipped else ""))
    trainer.accelerator.wait_for_everyone()  # a process that leaves first can abort the others
    trainer.accelerator.end_training()
    if trainer.outcome.failed:
        parser.error(trainer.outcome.sentence())


def why_nothing(skipped: dict, history: list[dict]) -> str:
    """What kept every prompt of a run from growing: its media (`skipped`), else the most frequent fault of tools."""
    if skipped:
        return f"every prompt was skipped, such as {next(iter(skipped.values()))}"
    faults = {name: value for entry in history for name, value in entry.items() if name.startswith("tool/errors/")}
    worst = max((name for name in faults if faults[name]), key=faults.get, default=None)
    return "no prompt grew an answer" + (f", most often for {worst}: see to the tools or their server" if worst else "")


def start_from(checkpoint: str, args, model_args) -> None:
    """Makes the weights of a checkpoint those the run begins with; nothing else of it is taken, which is said."""
    if (Path(checkpoint) / "adapter_config.json").exists():
        model_args.adapter_path = checkpoint
    else:
        model_args.model_name_or_path = checkpoint
    if args.process_index == 0:
        print(f"weights of {checkpoint}, with a new optimiser, from step 0; with beta they are the reference too")


def warn_of_idle_tools(acting: list[str], args) -> None:
    """Warns of tasks that need an environment where the method samples a completion in one go."""
    if acting and not METHODS[args.method].acts and args.process_index == 0:
        print(
            f"warning: method {args.method} samples a completion in one go and calls no tool: {', '.join(acting)} "
            f"needs one of {', '.join(name for name, method in METHODS.items() if method.acts)} to act step by step",
            file=sys.stderr,
        )


def build(script, args, model_args, provenance: dict[str, str]) -> GRPOMATrainer:
    """The trainer, with everything a user should see before the first step printed by the first process."""
    if not script.dataset_name:
        raise UserError(
            "no training data: give --dataset_name MANIFEST.yaml, or a record file (see metadata/README.md)"
        )
    check_output(args.output_dir)
    check_reporters(args.report_to)
    model_name = locate(model_args.model_name_or_path)
    source = {"revision": model_args.model_revision, "trust_remote_code": args.trust_remote_code}
    frame = coordinate_frame_of(model_name, given=model_args.coordinate_frame, **source)
    tasks = load_tasks(thought_end=args.thought_end, coordinate_frame=frame)
    rewards = [*task_rewards(tasks, timeout=args.reward_timeout), *load_rewards(script.extra_reward)]
    check_weight_count(args.reward_weights, [function.__name__ for function in rewards])
    data = {"seed": args.data_seed, "image_root": script.image_root, "on_bad_media": args.on_bad_media}
    manifests, held_out = (
        [locate(path) for path in paths] for paths in (script.dataset_name, script.eval_dataset_name)
    )
    if args.process_index == 0:
        print_sources(read_manifests(manifests + held_out, script.image_root))
    train_dataset = build_dataset(manifests, tasks, **data)
    eval_dataset = build_dataset(held_out, tasks, **data) if held_out else None
    types = first_records(train_dataset, eval_dataset)
    check_rewards([tasks[name] for name in types])
    warn_of_idle_tools([name for name in types if tasks[name].make_environment is not None], args)

    dtype = model_args.resolve_dtype(args.bf16)
    module, model, processor = load_policy(
        model_name,
        adapter_path=model_args.adapter_path and locate(model_args.adapter_path),
        dtype=dtype_to_load(dtype, args, adapter=model_args.use_peft),
        quantization_config=model_args.quantization(dtype),
        trainable=True,
        **model_args.loading(frame, args.chat_template_kwargs, args.trust_remote_code),
    )
    make_output(args.output_dir)  # not before: a wrong path of a model leaves no folder behind
    module.freeze(model, model_args.freeze_vision)
    if not model_args.use_peft:
        cast_frozen(model, dtype)
    if args.ddp_find_unused_parameters is None:  # text rows leave a trained vision tower out, a frozen one is never in
        args.ddp_find_unused_parameters = not model_args.freeze_vision
    if args.beta and not model_args.use_peft and model_args.model_revision != "main":
        args.model_init_kwargs = {"revision": model_args.model_revision}  # of the reference, which TRL loads
    with library_refusals(ValueError, ImportError):  # TRL, transformers and peft check some settings themselves
        trainer = GRPOMATrainer(
            model=model,
            module=module,
            processing_class=processor,
            reward_funcs=rewards,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            tasks=tasks,
            peft_config=None if model_args.adapter_path else model_args.lora(module, model),
        )
    TrackedReport.add_to(trainer, tasks)
    if METHODS[args.method].acts:
        settings = parse_environment_args(args.environment_args)
        check_agents(args, settings, *map(first_records, (train_dataset, eval_dataset)), tasks, module)
    if trainer.accelerator.is_main_process:
        weights = dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True))
        shown_model = model_args.adapter_path or model_args.model_name_or_path
        print_run(shown_model, script.dataset_name, args, weights, len(train_dataset))
        print_settings(args, provenance)
        describe_model(trainer, model)
        if any(tasks[name].config["frame"] == "processed" for name in types):
            print(f"  coordinates are asked for and scored in the frame {frame}")
        try_first_prompt(trainer, script.print_prompt)
        print(f"{len(train_dataset)} prompts, {args.leaves} leaves per prompt and process", flush=True)
    return trainer


def describe_model(trainer: GRPOMATrainer, model) -> None:
    """Prints what trains of the bare `model`, how pictures are sized, and what its kinds of layers cost."""
    trained = trainable_report(trainer.model, trainer.module)
    print_model(trained, dtypes_of(trainer.model), attention_by_tower(model), trainer.processing_class)
    print_costs(trainer.forward.unshared, forking_cost(model))


def try_first_prompt(trainer: GRPOMATrainer, shown: bool) -> None:
    """Encodes the first prompt, lets its task score an empty completion, and prints the prompt if it is to be shown."""
    row = trainer.train_dataset[0]
    prompt = trainer.encoder.encode(row)
    if prompt is not None:
        record, sizes = read_row(row), [[*prompt.image_sizes, None][0], [*prompt.processed_sizes, None][0]]
        check_record(trainer.tasks[record["question_type"]], record, *sizes)
        if shown:
            print_prompt(trainer.module.render(record["messages"]), prompt)


if __name__ == "__main__":
    with one_sentence_after_ctrl_c():
        main()
