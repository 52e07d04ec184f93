"""What eval.py and export.py are told in the same words: records, decoding, picture limits, thoughts, coordinates."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping

from task.errors import UserError
from task.task_loader import MODEL_FRAMES

LEAST = {"limit": 1, "temperature": 0, "max_new_tokens": 1}


def add_evaluated(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments; a command adds `--model_name_or_path` and `--adapter_path` in its own words."""
    add = parser.add_argument
    add(
        "--dataset_name",
        "--dataset",
        dest="dataset",
        nargs="+",
        required=True,
        metavar="MANIFEST",
        help="one or more manifests or record files",
    )
    add("--image_root", help="folder that relative media paths start from (default: the manifest's data_root)")
    add("--limit", type=int, help="take only the first N records")
    add("--temperature", type=float, default=0.0, help="0 = greedy (default); above 0 samples")
    add("--max_new_tokens", type=int, default=512, help="longest completion in tokens (default 512)")
    add("--max_pixels", type=int, help="larger pictures are scaled down to this many pixels (default: the processor's)")
    add("--min_pixels", type=int, help="smaller pictures are scaled up to this many pixels (default: the processor's)")
    add("--thought_end", default="</think>", help="tag that closes a thought, as in training (default </think>)")
    add(
        "--coordinate_frame",
        choices=MODEL_FRAMES,
        help="scale on which the model writes coordinates, as in training (default: the model family's)",
    )
    add("--chat_template_kwargs", help="JSON object of switches of the chat template, as in training")


def locate_evaluated(args: argparse.Namespace, locate: Callable[[str], str]) -> None:
    """Replaces the paths of records, model and adapter by what `locate` finds."""
    args.dataset = [locate(path) for path in args.dataset]
    for name in ("model_name_or_path", "adapter_path"):
        setattr(args, name, getattr(args, name) and locate(getattr(args, name)))


def check_least(args: argparse.Namespace, further: Mapping[str, float] | None = None) -> None:
    """UserError for a number below its least value; `further`: argument -> least value, beside those of this module."""
    for name, least in {**LEAST, **(further or {})}.items():
        value = getattr(args, name)
        if value is not None and not least <= value < math.inf:
            rule = "finite" if value == math.inf else f"at least {least}"
            raise UserError(f"--{name} {value}: it must be {rule}.")
