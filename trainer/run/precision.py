"""Weights that are trained are kept in float32, whatever type the others have."""

from __future__ import annotations

import torch

from model.quantised import is_quantised
from task.errors import UserError

LOW = (torch.bfloat16, torch.float16)
WAY_OUT = (
    "which rounds most updates to nothing: set bf16 to true, so that they are kept in float32, or dtype to float32"
)


def dtype_to_load(dtype: str, args, adapter: bool) -> str:
    """The dtype in which a model is loaded whose weights shall have `dtype`: float32 where they are trained themselves.

    A float32 checkpoint of an earlier run then keeps its updates. `adapter`: only an adapter is trained.
    """
    if adapter or args.deepspeed_plugin is not None or dtype == "float32":
        return dtype
    if not (args.bf16 or args.fp16):
        raise UserError(f"dtype={dtype} with use_peft=False would train weights in {dtype}, {WAY_OUT}")
    return "float32"


def cast_frozen(model, dtype: str) -> None:
    """Casts the weights that are not trained, in place."""
    for weight in model.parameters():
        if not weight.requires_grad and weight.is_floating_point():
            weight.data = weight.data.to(getattr(torch, dtype))


def dtypes_of(model) -> str:
    """The dtypes of a model's weights in words, those of the trained ones apart where they differ."""
    frozen, trained = (
        {str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.requires_grad is wanted}
        for wanted in (False, True)
    )
    names = "/".join(sorted(frozen or trained))
    return names if trained <= (frozen or trained) else f"{names}, trained ones {'/'.join(sorted(trained))}"


def train_in_float32(model, args) -> None:
    """Casts the trainable weights to float32, in place; under mixed precision the forward pass casts them back.

    A bfloat16 number has 8 significant bits: an update below 1/512 of a weight, which at usual learning rates is almost
    every one, leaves the weight unchanged. Under DeepSpeed nothing is cast: ZeRO updates float32 copies of its own.

    Args:
        args: TrainingArguments.

    Raises:
        UserError: weights in low precision would be trained without mixed precision.
    """
    low = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p.dtype in LOW]
    if not low or args.deepspeed_plugin is not None:
        return
    if not (args.bf16 or args.fp16 or is_quantised(model)):  # TRL makes the adapter of a quantised model bfloat16
        name, weight = low[0]
        raise UserError(f"{name} would be trained in {str(weight.dtype).removeprefix('torch.')}, {WAY_OUT}")
    for _, weight in low:
        weight.data = weight.data.float()
