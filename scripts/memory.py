"""Estimates the GPU memory of a training process, term by term, and finds settings that fit a card.

    python scripts/memory.py Qwen2.5-VL-3B-Instruct --recipe config/recipes/grpo_ma_qwen2_5_vl_3b.yaml --card 24
    python scripts/memory.py --table      # the table of docs/memory.md

MODEL is a folder, a config.json, or the name of a config in scripts/memory/configs/. Every tree is taken at its token
limits, so the estimate is an upper bound for the recipe. Flags of train.py override the recipe. No GPU is needed.
"""

import argparse
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _root import locate, use_checkout

use_checkout()
sys.path.insert(1, str(Path(__file__).resolve().parent))

warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # TRL's name for checkpointing

from memory.estimate import GB, MARGIN, Settings, breakdown, fitting, table
from memory.sizes import CONFIGS, count, read_config
from memory.terms import Trees, Tuning

from config.grpo_config import GRPOConfig
from config.methods import SETTINGS
from config.model_config import GRPOModelConfig
from config.parser import RecipeParser
from config.script_arguments import GRPOScriptArguments
from task.errors import UserError

RECIPE = "config/recipes/grpo_ma_qwen2_5_vl_3b.yaml"
DEFAULT_PIXELS = 12_845_056  # of Qwen2.5-VL's processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", metavar="MODEL")
    parser.add_argument("--recipe", default=RECIPE, help=f"default: {RECIPE}")
    parser.add_argument("--gpus", type=int, default=8, help="processes that share optimiser states (default 8)")
    parser.add_argument("--zero", type=int, choices=[0, 2, 3], help="default: 2 for adapters, 3 for all weights")
    parser.add_argument("--text_tokens", type=int, default=128, help="of a prompt without pictures (default 128)")
    parser.add_argument("--pictures", type=int, default=1, help="pictures per prompt (default 1)")
    parser.add_argument("--card", type=float, metavar="GB", help="find settings that fit this card")
    parser.add_argument("--table", action="store_true", help="settings per card, model and tuning, as Markdown")
    args, flags = parser.parse_known_args()
    if (args.model is None) != args.table:
        parser.error("name a MODEL, or give --table, which covers the shipped configs")
    try:
        recipe = RecipeParser((GRPOScriptArguments, GRPOConfig, GRPOModelConfig)).parse(
            ["--config", locate(args.recipe), *flags, "--use_cpu", "true"]
        )
        print_table(args, recipe) if args.table else print_model(args, recipe)
    except UserError as error:
        parser.error(str(error))


def print_table(args, recipe) -> None:
    models = {path.stem: count(read_config(str(path))) for path in sorted(CONFIGS.glob("*.json"))}
    tunings = [tuning_of(args, recipe, mode) for mode in ("lora", "qlora", "full")]
    print("\n".join(table(models, tunings, trees_of(args, recipe, next(iter(models.values()))))))


def print_model(args, recipe) -> None:
    _, settings, model_args = recipe
    sizes = count(read_config(args.model), vision_lora=model_args.lora_vision)
    mode = "full" if not model_args.use_peft else "qlora" if model_args.load_in_4bit else "lora"
    tuning, trees = tuning_of(args, recipe, mode), trees_of(args, recipe, sizes)
    per_step = max(settings.per_device_train_batch_size // trees.leaves, 1)
    grown = max(settings.per_device_train_batch_size * settings.steps_per_generation // trees.leaves, 1)
    own = Settings(
        settings.gradient_checkpointing, settings.max_slots, min(settings.rollout_prompts or grown, grown), per_step
    )
    print(f"{args.model}: {sizes.parameters / 1e9:.2f} B parameters, {mode}, ZeRO {tuning.zero}, {args.gpus} processes")
    print(f"a tree at its limits: {trees.leaves} leaves, {trees.slots} slots, prompt of {trees.prompt} tokens")
    show(own, sizes, tuning, trees)
    if args.card:
        fits = fitting(sizes, tuning, trees, args.card)
        print(f"\n{args.card:g} GB, of which {MARGIN:.0%} may be filled:" + ("" if fits else " nothing fits"))
        if fits:
            show(fits, sizes, tuning, trees)


def show(settings: Settings, sizes, tuning, trees) -> None:
    print(f"\ngradient_checkpointing {settings.checkpointing}, max_slots {settings.max_slots}, ", end="")
    print(f"{settings.prompts} prompt(s) grown together, {settings.trees} tree(s) per micro-batch")
    for phase, found in breakdown(sizes, tuning, trees, settings).items():
        print(f"  {phase}: {sum(found.values()) / GB:.1f} GB")
        for name, size in found.items():
            print(f"    {name:32}{size / GB:8.2f}")


def tuning_of(args, recipe, mode: str) -> Tuning:
    model_args = recipe[2]
    zero = args.zero if args.zero is not None else 3 if mode == "full" else 2
    width = 4 if model_args.resolve_dtype(recipe[1].bf16) == "float32" else 2
    return Tuning(mode, model_args.lora_r, model_args.lora_dropout, zero, args.gpus, width)


def trees_of(args, recipe, sizes) -> Trees:
    """Of the recipe's method; a method whose forks depend on what is sampled counts as chains that share a prompt."""
    _, settings, model_args = recipe
    seen = sizes.pixels_per_token and args.pictures
    visual = (model_args.max_pixels or DEFAULT_PIXELS) // sizes.pixels_per_token * args.pictures if seen else 0
    prompt = visual + args.text_tokens
    if "think_num" in SETTINGS[settings.method].shown:
        lengths = settings.max_thought_length, settings.max_answer_length
        return Trees(prompt, visual, settings.think_num, settings.answer_num, *lengths)
    return Trees(prompt, visual, settings.num_generations, 1, settings.max_completion_length, 0)


if __name__ == "__main__":
    main()
