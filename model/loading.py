"""Loads and checks what a folder names: base weights, a complete adapter, and the processor."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from model.chat_templates import read_template_kwargs
from model.quantised import weights_in
from model.registry import module_for
from model.vlm_module import TOWERS, VLMModule, unloadable
from task.errors import UserError

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


WHOLE = ("model.safetensors*", "model-*.safetensors", "pytorch_model*.bin*")  # weights of a whole model


class AdapterError(UserError):
    """An adapter that cannot be used; other checkpoints of the same run may be usable."""


def load_policy(
    name_or_path: str | None,
    adapter_path: str | None = None,
    *,
    dtype: str,
    attn_implementation: str | dict | None = None,
    quantization_config=None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    coordinate_frame: str | None = None,
    chat_template_kwargs: str | dict | None = None,
    trainable: bool = False,
) -> tuple:
    """(module, model, processor) of a model, with an adapter on top if one is named.

    Without `name_or_path` the base is the model that the adapter was trained on. The processor comes from the adapter's
    folder if that has one, so that the pixel limits are those of training; limits given here take precedence.

    Args:
        coordinate_frame: the module's, where the checkpoint was trained on another than its family's.
        chat_template_kwargs: what the chat template is told besides the turns, as JSON or a dict.
        trainable: whether the adapter's weights stay trainable.
    """
    origin = ""
    if name_or_path is None:
        if adapter_path is None:
            raise UserError("neither a model nor an adapter was named: give --model_name_or_path or --adapter_path.")
        name_or_path = adapter_base(adapter_path)
        origin = f"{adapter_path} was trained on {name_or_path}; give its base as --model_name_or_path. "
    for path in filter(None, (name_or_path, adapter_path)):
        check_one_kind(path)
    source = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        module = module_for(name_or_path, **source)
    except UserError as error:
        raise UserError(f"{origin}{error}") from error
    module.coordinate_frame = coordinate_frame or module.coordinate_frame
    module.template_kwargs = read_template_kwargs(chat_template_kwargs)
    model = module.load_model(name_or_path, dtype, attn_implementation, quantization_config, **source)
    if adapter_path is not None:
        model = load_adapter(model, adapter_path, trainable=trainable)
    folder = processor_folder(name_or_path, adapter_path)
    processor = module.load_processor(folder, min_pixels, max_pixels, **(source if folder == name_or_path else {}))
    return module, model, processor


def processor_folder(name_or_path: str, adapter_path: str | None) -> str:
    """Where the processor is read from: the adapter's folder if it has one, else the model's."""
    saved = adapter_path and any((Path(adapter_path) / file).exists() for file in PROCESSOR_FILES)
    return adapter_path if saved else name_or_path


def coordinate_frame_of(
    name_or_path: str | None, adapter_path: str | None = None, given: str | None = None, **source
) -> str | None:
    """The frame in which a model writes coordinates, from its config alone: `given`, else its family's.

    None if it is not known. `source` is passed to `module_for`.
    """
    return given or module_for(name_or_path or adapter_base(adapter_path), **source).coordinate_frame


def check_one_kind(path: str | Path) -> None:
    """AdapterError for a folder with both a whole model and an adapter, which two runs have left there."""
    folder = Path(path)
    adapter = next(folder.glob("adapter_model.*"), None)
    whole = next((file for pattern in WHOLE for file in folder.glob(pattern)), None)
    if adapter and whole:
        raise AdapterError(
            f"{path} holds a whole model ({whole.name}) and an adapter ({adapter.name}), results of two runs in one "
            "folder: move the one that is not meant into a folder of its own."
        )


def adapter_base(path: str | Path) -> str:
    """Name or folder of the model that an adapter was trained on. UserError if the adapter does not name it."""
    base = adapter_settings(path).get("base_model_name_or_path")
    if not base:
        raise UserError(f"{path}/adapter_config.json names no base model: give it as --model_name_or_path.")
    return base


def load_adapter(model, path: str | Path, trainable: bool = False):
    """The model with the LoRA adapter of a folder, as a PeftModel; every weight of the adapter is loaded.

    Raises AdapterError if the folder is not a LoRA adapter, if its weights do not match the model's LoRA weights in
    name or shape (another base, another library version), if the adapter was never trained (lora_B all zero), and if
    its weights are NaN or infinite. The library itself only warns in these cases, and the base model would be evaluated
    instead.
    """
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    from peft.utils.save_and_load import load_peft_weights

    settings = adapter_settings(path)
    if settings.get("peft_type") != "LORA":
        raise AdapterError(
            f"{path} is an adapter of type {settings.get('peft_type')}: only LORA adapters are supported."
        )
    config = PeftConfig.from_pretrained(str(path))
    config.inference_mode = not trainable
    beside = _beside_the_adapter(config)
    if trainable and beside:
        raise AdapterError(
            f"{path} has {beside}, which changes base weights in addition to LoRA's own: to train on, merge it with "
            "scripts/merge_adapter.py and give the result as the model."
        )
    try:
        weights = load_peft_weights(str(path), device="cpu")
    except Exception as error:
        raise AdapterError(unloadable(str(path), "adapter", error)) from error
    origin = f"{path} (an adapter of {settings.get('base_model_name_or_path')}) does not fit {type(model).__name__}"
    try:
        peft_model = get_peft_model(model, config)
    except (ValueError, TypeError) as error:
        raise AdapterError(f"{origin}: {error} Give the base model it was trained on.") from error
    own_embedding = any(name.endswith(".base_layer.weight") for name in weights)  # saved with an adapter on it
    places = get_peft_model_state_dict(peft_model, save_embedding_layers=own_embedding)
    mismatch = _mismatch(weights, places)
    fault = mismatch or _not_a_number(weights) or _untrained(weights)
    if fault:
        peft_model.unload()
        raise AdapterError(f"{origin if mismatch else path}: {fault}")
    set_peft_model_state_dict(peft_model, weights)
    return peft_model


def trainable_report(model, module: VLMModule) -> dict[str, tuple[int, int]]:
    """Tower -> (trainable, all) parameters. An adapter counts towards the tower that it modifies."""
    report = {tower: (0, 0) for tower in TOWERS}
    for name, parameter in model.named_parameters():
        size = weights_in(parameter)  # with ZeRO-3 the parameters are empty, and quantised ones packed
        tower = module.tower_of(name)
        trainable, total = report[tower]
        report[tower] = (trainable + size * parameter.requires_grad, total + size)
    return {tower: counts for tower, counts in report.items() if counts[1]}


def adapter_settings(path: str | Path) -> dict:
    """What adapter_config.json says. AdapterError for a folder without, or without the adapter's weights."""
    folder = Path(path)
    file = folder / "adapter_config.json"
    if not file.exists():
        if (folder / "config.json").exists():
            raise AdapterError(f"{path} is a whole model, not an adapter: pass it as --model_name_or_path.")
        raise AdapterError(f"{path} has no adapter_config.json: give the folder that a LoRA training saved.")
    if not any((folder / f"adapter_model.{ending}").exists() for ending in ("safetensors", "bin")):
        raise AdapterError(f"{path} has an adapter_config.json but no weights: the save was cut off; take another one.")
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AdapterError(f"{file} is not JSON ({error}): take another checkpoint.") from error
    if not isinstance(settings, dict):
        raise AdapterError(f"{file} must hold a JSON object, not a {type(settings).__name__}: take another checkpoint.")
    return settings


def _beside_the_adapter(config) -> str | None:
    """A setting that makes the adapter more than low-rank matrices; a frozen reference would share the rest of it."""
    init = config.init_lora_weights
    plain = not isinstance(init, str) or init in ("gaussian", "eva", "orthogonal")
    faults = {
        "bias": config.bias != "none",
        "trainable_token_indices": bool(config.trainable_token_indices),
        "init_lora_weights": not plain,  # pissa, olora and others subtract a part from the base at the start
    }
    return next((f"{name}={getattr(config, name)}" for name, fault in faults.items() if fault), None)


def _mismatch(weights: dict[str, torch.Tensor], places: dict[str, torch.Tensor]) -> str | None:
    missing, unexpected = sorted(places.keys() - weights.keys()), sorted(weights.keys() - places.keys())
    for what, names in (("the adapter lacks", missing), ("the model has no place for", unexpected)):
        if names:
            return (
                f"{what} {len(names)} of its {len(places)} LoRA weights (first: {names[0]}). "
                f"Give the base model and the library versions it was trained with."
            )
    for name, place in places.items():
        if weights[name].shape != place.shape:
            return (
                f"{name} has shape {tuple(weights[name].shape)} in the adapter and {tuple(place.shape)} in the model. "
                f"Give the base model it was trained on."
            )
    return None


def _not_a_number(weights: dict[str, torch.Tensor]) -> str | None:
    broken = [name for name, weight in weights.items() if not weight.isfinite().all()]
    if not broken:
        return None
    return f"{broken[0]} holds NaN or infinity: the training that saved it had diverged. Take an earlier checkpoint."


def _untrained(weights: dict[str, torch.Tensor]) -> str | None:
    if any(weight.any() for name, weight in weights.items() if ".lora_B." in name):
        return None
    return (
        "every lora_B is zero, so the adapter changes nothing: it was saved before the first step that learns (a "
        "warm-up's first has a learning rate of 0), or no step had answers of different reward. Look at the log's "
        "reward and zero_spread, and take a checkpoint that learnt."
    )
