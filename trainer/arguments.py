"""Checks of GRPOMATrainer's arguments that TRL does not make, and the part of the reference that TRL does not copy."""

from __future__ import annotations

from model.chat_templates import check_template_kwargs, read_template_kwargs
from task.errors import UserError
from task.parsing.answers import thought_tags
from trainer.run.precision import train_in_float32

OURS = {
    "tools": "TRL would run its own tool loop over finished leaves",
    "environment_factory": "TRL would run its own tool loop over finished leaves",
    "rollout_func": "the trainer grows its own trees",
}


def check_arguments(train_dataset, keywords: dict) -> None:
    """Raises UserError for a dataset without our columns, and for arguments of TRL that do not work with trees."""
    missing = {"prompt", "record"} - set(train_dataset.column_names)
    if missing:
        raise UserError(
            f"train_dataset lacks the column {' and '.join(sorted(missing))}: build it with "
            "dataset.dataset_grpo.build_dataset"
        )
    for name, reason in OURS.items():
        if keywords.get(name) is not None:
            raise UserError(f"{name} cannot be passed to GRPOMATrainer: {reason}; leave it out")


def check_evaluation(args, eval_dataset) -> None:
    """Raises UserError for evaluations during training without anything to evaluate."""
    if eval_dataset is None and args.eval_strategy != "no":
        raise UserError(
            f"eval_strategy={args.eval_strategy.value} has nothing to evaluate: give --eval_dataset_name MANIFEST.yaml "
            "(from Python eval_dataset), or set eval_strategy to no"
        )


def check_thought_end(tasks: dict, thought_end: str, module=None) -> None:
    """Raises UserError for tasks that score other thought tags than the policy samples.

    Also for a text that holds an end-of-sequence token of the `module`: the completion would end with the thought.
    """
    other = next((task.thought_end for task in tasks.values() if task.thought_end != thought_end), None)
    if other is not None:
        raise UserError(
            f"the tasks were loaded for thought_end {other}, but thoughts end with {thought_end}: load them by "
            f"load_tasks(thought_end={thought_end!r})"
        )
    ends = module.tokenizer.convert_ids_to_tokens(module.eos_token_ids(module.processor)) if module else []
    found = next((end for end in ends if end in thought_end), None)
    if found is not None:
        raise UserError(
            f"thought_end={thought_end!r} holds {found}, with which the model ends a completion: give a text without it"
        )


def check_coordinates(tasks: dict, module) -> None:
    """Raises UserError for tasks that ask for coordinates in another frame than the model writes."""
    frame = module.coordinate_frame
    other = next((t for t in tasks.values() if t.config["frame"] == "processed" and t.coordinate_frame != frame), None)
    if frame is not None and other is not None:
        raise UserError(
            f"the tasks were loaded for coordinates in the frame {other.coordinate_frame}, but this model writes them "
            f"in {frame}: load them by load_tasks(coordinate_frame={frame!r}), or set module.coordinate_frame"
        )


def check_opened_thought(thought_end: str, module) -> None:
    """Raises UserError if the chat template opens a thought with another tag than the run's thoughts have."""
    opened, tag = module.opened_thought.strip(), thought_tags(thought_end)[0]
    if opened not in ("", tag):
        raise UserError(
            f"the model's chat template opens a thought with {opened}, but with thought_end={thought_end} thoughts "
            f"begin with {tag}: set thought_end to {opened[0]}/{opened[1:]}"
        )


def prepare_module(module, processor, args, tasks: dict) -> None:
    """Gives the module the run's processor and chat template settings.

    Raises UserError for tasks that do not fit them: other tags of thoughts, another frame of coordinates.
    """
    module.processor = processor
    if args.chat_template_kwargs:
        module.template_kwargs = read_template_kwargs(args.chat_template_kwargs)
        check_template_kwargs(module.template_kwargs, processor.chat_template)
    check_thought_end(tasks, args.thought_end, module)
    check_opened_thought(args.thought_end, module)
    check_coordinates(tasks, module)


def prepare_weights(model, args) -> None:
    """What TRL leaves to do on a model's weights: the reference is completed, and what trains is kept in float32."""
    complete_reference(model)
    train_in_float32(model, args)


def complete_reference(model) -> None:
    """Copies the LoRA weights of embeddings, which TRL overlooks, to the adapter's frozen reference.

    TRL copies parameters with `.default.` in their name, but those of an embedding end in `.default`.
    """
    if "ref" in getattr(model, "peft_config", {}):
        for name, weight in model.named_parameters():
            if name.endswith(".default"):
                model.get_parameter(f"{name.removesuffix('default')}ref").data.copy_(weight.data)
