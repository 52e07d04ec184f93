"""Merges a LoRA adapter into its base model and checks that the merged model gives the same logits.

    python scripts/merge_adapter.py runs/mine runs/mine/merged

The merge is computed in float32, whatever dtype is saved. Before anything is written, the model with the adapter and
the merged one are run on two prompts, one with a picture if the model takes pictures. The largest difference of their
float32 logits is printed; if it exceeds 1e-4, nothing is written. OUT is then a full model with its processor, for
--model_name_or_path of training and evaluation.

OUT is float32 by default. The adapter was trained in float32, and its change of most weights is smaller than the step
between two bfloat16 numbers: rounding moves the logits by about 0.1, merging in float32 by 1e-5. The file is twice as
large; whoever loads it may still choose bfloat16. With --dtype bfloat16 or float16 the weights are rounded once, after
the check, and the effect on the logits is printed. An adapter that was trained on quantised weights (QLoRA) is merged
into the float ones, and what that changes is printed too. Exit status 2 for a user's mistake, with one sentence.
"""

import argparse
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _root import locate, use_checkout

ROOT = use_checkout()
warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # peft's name for checkpointing

import torch
from PIL import Image
from transformers import BitsAndBytesConfig

from model.loading import load_policy
from model.quantised import in_words, saved_quantisation
from task.errors import UserError

LARGEST_GAP = 1e-4
QUESTION = "Where should the gripper move to pick up the red cube?"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", metavar="ADAPTER", help="LoRA checkpoint folder")
    parser.add_argument("out", metavar="OUT", type=Path, help="a new or empty folder for the merged model")
    parser.add_argument("--model_name_or_path", help="base model (default: the one that the adapter names)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="dtype of OUT (default: float32, which keeps the adapter's logits; the others halve the file and round)",
    )
    args = parser.parse_args(argv)
    try:
        merge(locate(args.adapter), args.out, args.model_name_or_path and locate(args.model_name_or_path), args.dtype)
    except (UserError, OSError) as error:
        print(f"merge_adapter.py: {error}", file=sys.stderr)
        return 2
    print(f"written to {args.out}")
    return 0


def merge(adapter: str, out: Path, base: str | None, dtype: str) -> None:
    """Writes the merged model and its processor to `out`.

    Raises UserError for an adapter that cannot be loaded, a folder that is not empty, and logits that differ.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} is not an empty folder: name a new one.")
    module, model, processor = load_policy(base, adapter, dtype="float32")
    prompts = sample_prompts(module)
    expected = logits_of(model.eval(), module, prompts)
    untouched = logits_of_base(model, module, prompts)
    merged = model.merge_and_unload()
    gap = largest_gap(expected, logits_of(merged, module, prompts))
    print(f"logits with the adapter and merged differ by at most {gap:.1e} over {len(prompts)} prompts")
    print(f"the adapter moves them by {largest_gap(expected, untouched):.1e}")
    if not gap <= LARGEST_GAP:
        raise UserError(f"the merged logits differ by {gap:.1e}, above {LARGEST_GAP:.0e}: {out} is not written.")
    if dtype != "float32":
        for weight in merged.parameters():  # not the buffers of the positions, which are computed on loading
            weight.data = weight.data.to(getattr(torch, dtype)).float()
        print(f"rounding to {dtype} moves them by {largest_gap(expected, logits_of(merged, module, prompts)):.1e}")
    tell_of_quantisation(adapter, base, expected, prompts)
    out.mkdir(parents=True, exist_ok=True)
    merged.to(getattr(torch, dtype)).save_pretrained(out)
    processor.save_pretrained(out)


def tell_of_quantisation(adapter: str, base: str | None, expected: list[torch.Tensor], prompts: list) -> None:
    """Prints how far the merged model is from an adapter's own, if that was trained on quantised base weights."""
    saved = saved_quantisation(adapter)
    if saved is None:
        return
    said = f"the adapter was trained on {in_words(saved)} and is merged into float ones"
    try:
        config = BitsAndBytesConfig.from_dict(saved)
        module, model, _ = load_policy(base, adapter, dtype="float32", quantization_config=config)
    except UserError as error:
        print(f"{said}; how far that moves the logits cannot be computed here ({error})")
        return
    gap = largest_gap(expected, logits_of(model.eval(), module, prompts))
    print(f"{said}: their logits differ by {gap:.1e} from those that were trained")


def sample_prompts(module) -> list:
    """An EncodedPrompt of text and, if the model takes pictures, one with a picture of many colours."""
    text = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    prompts = [module.encode(text)]
    if hasattr(module.processor, "image_processor"):
        ramp = Image.linear_gradient("L").resize((112, 84))
        picture = Image.merge("RGB", (ramp, ramp.rotate(90), ramp.rotate(180)))
        parts = [{"type": "image", "index": 0}, *text[0]["content"]]
        prompts.append(module.encode([{"role": "user", "content": parts}], [picture]))
    return prompts


@torch.no_grad()
def logits_of(model, module, prompts: list) -> list[torch.Tensor]:
    """Float32 logits (P, V) of each prompt."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt.ids])
        media = module.batch_media([prompt]) | module.token_types(ids)
        found.append(model(input_ids=ids, position_ids=prompt.position_ids.unsqueeze(-2), **media).logits[0].float())
    return found


def logits_of_base(model, module, prompts: list) -> list[torch.Tensor]:
    with model.disable_adapter():
        return logits_of(model, module, prompts)


def largest_gap(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(left, right, strict=True))


if __name__ == "__main__":
    sys.exit(main())
