"""Starts vLLM in this process with the environment it needs, and leaves the process as it was."""

from __future__ import annotations

import torch

from task.errors import UserError
from trainer.engines.serving import Serving, sends_adapter
from trainer.engines.vllm.process_state import process_state_kept
from trainer.engines.vllm.served import served
from trainer.engines.vllm.size import Size

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # tensors do not cross to an engine in another process
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the other model runner has another sampler than `TreeSampler` replaces
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
ON_A_CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer computes in the same threads
    "TORCH_COMPILE_DISABLE": "1",  # no kernel is compiled for one process's small batches
}
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
WITH_PICTURES = ("qwen2_5_vl",)
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def start(config, processor, dtype: torch.dtype, size: Size, eos_ids, forbidden_ids, **settings):
    """A `Colocated` engine with random weights; see there for the arguments.

    Raises UserError, with vLLM's own reason, if it cannot run the model here.
    """
    check_architecture(config)
    environment = ENVIRONMENT | ({} if torch.cuda.is_available() else ON_A_CPU)
    with process_state_kept(environment):
        from trainer.engines.vllm.colocated import Colocated

        try:
            return Colocated(config, processor, dtype, size, eos_ids, forbidden_ids, **settings)
        except (ValueError, NotImplementedError, RuntimeError) as error:
            raise UserError(
                f"use_vllm: vLLM cannot start with this model here ({_reason(error)}): raise "
                "vllm_gpu_memory_utilization if memory is short, else leave use_vllm out"
            ) from error


def _reason(error: Exception) -> str:
    """vLLM's own words: of a pydantic error those of its first fault, else the last line."""
    told = error.errors()[0]["msg"] if hasattr(error, "errors") else str(error)
    return (told.strip() or type(error).__name__).splitlines()[-1]


def check_architecture(config) -> None:
    """Raises UserError for a model that vLLM is known not to run as transformers does."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if len(kinds) > 1 or kinds - {"full_attention", "sliding_attention"}:
        raise UserError(
            f"use_vllm: {type(config).__name__} has layers of kind {' and '.join(sorted(kinds))}, which vLLM computes "
            "differently or refuses: leave use_vllm out"
        )
    check_pictures(config)
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    if not torch.cuda.is_available() and width not in CPU_HEADS:
        raise UserError(
            f"use_vllm: the attention heads have {width} dimensions, and vLLM on a CPU takes "
            f"{', '.join(map(str, CPU_HEADS))}: leave use_vllm out"
        )


def check_pictures(config) -> None:
    """Raises UserError for a model whose pictures cannot be handed to vLLM."""
    if config.get_text_config() is not config and config.model_type not in WITH_PICTURES:
        raise UserError(
            f"use_vllm: pictures are handed to vLLM for {' and '.join(WITH_PICTURES)}, and not for "
            f"{config.model_type}: leave use_vllm out"
        )


def serving_of(trainer) -> Serving | None:
    """The serving engine of a run with `use_vllm`, else None."""
    args = trainer.args
    if not args.use_vllm:
        return None
    model = trainer.accelerator.unwrap_model(trainer.model)
    if getattr(model, "is_quantized", False) or getattr(model.config, "quantization_config", None) is not None:
        raise UserError("use_vllm: quantised weights cannot be sent to vLLM: leave use_vllm or the quantisation out")
    if args.vllm_mode == "server":
        check_pictures(model.config)
        return served(trainer)
    dtype = compute_dtype(model, args)
    longest = args.max_prompt_length + args.max_completion_length
    longest = args.vllm_max_model_length or min(longest, model.config.get_text_config().max_position_embeddings)
    size = Size(longest, memory=args.vllm_gpu_memory_utilization)
    return colocated(
        model,
        trainer.processing_class,
        dtype,
        size,
        trainer.eos_token_ids,
        trainer.module.forbidden_token_ids(trainer.processing_class),
        processes=args.world_size,
        shown=trainer.accelerator.is_main_process,
        enable_sleep_mode=args.vllm_enable_sleep_mode,
    )


def colocated(
    model, processor, dtype: torch.dtype, size: Size, eos_ids, forbidden_ids, processes: int, shown: bool, **settings
) -> Serving:
    """vLLM in this process, which has no weights of `model` yet; see `start` for the other arguments.

    Args:
        model: the policy, with its adapter if it has one.
        processes: of the run, each of which has an engine.
        shown: whether this process prints.
    """
    if processes > 1:
        settings["distributed_executor_backend"] = "external_launcher"
    if sends_adapter(model, dtype):
        settings |= lora_settings(model)
    return Serving(start(model.config, processor, dtype, size, eos_ids, forbidden_ids, **settings), dtype, shown)


def compute_dtype(model, args) -> torch.dtype:
    """The dtype that the policy's forward pass computes in."""
    if args.bf16 or args.fp16:
        return torch.bfloat16 if args.bf16 else torch.float16
    return next(model.parameters()).dtype


def lora_settings(model) -> dict:
    """Arguments of `vllm.EngineArgs` for an adapter that is sent alone. Raises UserError for one that cannot be."""
    adapter = model.peft_config["default"]
    rank = max([adapter.r, *(adapter.rank_pattern or {}).values()])
    allowed = next((limit for limit in LORA_RANKS if limit >= rank), None)
    if allowed is None or adapter.modules_to_save:
        what = f"lora_r={rank}" if allowed is None else f"lora_modules_to_save={adapter.modules_to_save}"
        raise UserError(
            f"use_vllm: {what} cannot be sent to vLLM beside weights in low precision: use a rank of at most "
            f"{LORA_RANKS[-1]} and no modules_to_save, or train in float32"
        )
    vision = any("visual." in name and "lora_" in name for name, _ in model.named_parameters())
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": allowed, "enable_tower_connector_lora": vision}
