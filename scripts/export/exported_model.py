"""The model of an export: an adapter merged, a whole model linked, and the processor of the run beside it."""

import argparse
import json
from pathlib import Path

from task.errors import UserError

WHOLE = ("config.json", "*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")  # files that are linked


def reader_of(args: argparse.Namespace, models: dict, tool: str):
    """The VLMModule of the run with its processor, as training read pictures and prompts; no weights are loaded.

    Args:
        models: model types that `tool` can run.
    """
    from model.chat_templates import read_template_kwargs
    from model.loading import adapter_base, adapter_settings, check_one_kind, processor_folder
    from model.registry import module_for
    from trainer.arguments import check_opened_thought

    if args.adapter_path is None and args.model_name_or_path is None:
        raise UserError("nothing to export: give --model_name_or_path, --adapter_path, or both.")
    if args.adapter_path:
        adapter_settings(args.adapter_path)
    name = args.model_name_or_path or adapter_base(args.adapter_path)
    for path in filter(None, (name, args.adapter_path)):
        check_one_kind(path)
    if args.adapter_path is None and not Path(name).is_dir():
        raise UserError(f"--model_name_or_path {name} is not a folder: a whole model is exported from its folder.")
    if args.adapter_path is None and args.dtype:
        raise UserError(f"--dtype {args.dtype} is of merging an adapter; a whole model is exported as it is.")
    module = module_for(name)
    if module.config.model_type not in models:
        raise UserError(
            f"model type {module.config.model_type!r} is not exported: {tool} is known to give such models their "
            f"pictures unchanged only for {', '.join(models)}; export the predictions of eval.py instead (samples)."
        )
    module.coordinate_frame = args.coordinate_frame or module.coordinate_frame
    module.template_kwargs = read_template_kwargs(args.chat_template_kwargs)
    module.load_processor(processor_folder(name, args.adapter_path), args.min_pixels, args.max_pixels)
    check_opened_thought(args.thought_end, module)
    check_tags(args.thought_end, module.tokenizer, tool)
    return module


def check_tags(thought_end: str, tokenizer, tool: str) -> None:
    """UserError if a tag is a special token, which other tools take out of completions."""
    from task.parsing.answers import ANSWER_END, ANSWER_START, thought_tags

    dropped = sorted({*thought_tags(thought_end), ANSWER_START, ANSWER_END} & set(tokenizer.all_special_tokens))
    if dropped:
        raise UserError(
            f"the tokenizer lists {', '.join(dropped)} as special, and {tool} takes special tokens out of completions, "
            "so that no answer would be found: set special to false in the model's tokenizer files."
        )


def write_model(args: argparse.Namespace, folder: Path, module, first: str = "") -> None:
    """Writes weights, config, processor and generation settings to `folder`; the module's processor stays as it is.

    Args:
        first: what the exported chat template begins with.
    """
    from transformers import GenerationConfig

    from scripts.merge_adapter import merge

    if args.adapter_path:
        merge(args.adapter_path, folder, args.model_name_or_path, args.dtype or "float32")
    else:
        link_whole(Path(args.model_name_or_path), folder)
    processor, plain = module.processor, module.processor.chat_template
    processor.chat_template = first + with_switches(plain, module.template_kwargs)
    processor.save_pretrained(folder)
    processor.chat_template = plain
    stated = generation_settings(folder if args.adapter_path else Path(args.model_name_or_path)).get("eos_token_id")
    stated = stated if isinstance(stated, list) else [] if stated is None else [stated]
    GenerationConfig(
        do_sample=args.temperature > 0,
        eos_token_id=module.eos_token_ids(processor, stated),
        pad_token_id=module.tokenizer.pad_token_id,
        suppress_tokens=module.forbidden_token_ids(processor),
    ).save_pretrained(folder)


def link_whole(source: Path, folder: Path) -> None:
    """Links to the weights and the config of a whole model."""
    folder.mkdir(parents=True)
    files = [file for pattern in WHOLE for file in sorted(source.glob(pattern))]
    if len(files) < 2:
        raise UserError(f"{source} holds no whole model (config.json and weights): give the folder of one.")
    for file in files:
        (folder / file.name).symlink_to(file.resolve())


def generation_settings(folder: Path) -> dict:
    file = folder / "generation_config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def with_switches(template: str, switches: dict) -> str:
    """The chat template with the run's switches set, since other tools cannot pass them.

    >>> with_switches("{{ messages }}", {"enable_thinking": False})
    '{%- set enable_thinking = false -%}\\n{{ messages }}'
    """
    return "".join(f"{{%- set {name} = {json.dumps(value)} -%}}\n" for name, value in switches.items()) + template
