"""Arguments of vLLM's engine for trees, as far as they follow from the model and the machine. Imports no vLLM."""

from __future__ import annotations

from pathlib import Path

import torch

from trainer.engines.vllm.size import Size


def engine_arguments(folder: str | Path, config, dtype: torch.dtype, size: Size) -> dict:
    """Arguments of `vllm.EngineArgs` for a model whose config and processor are in `folder`."""
    arguments = {
        "model": str(folder),
        "load_format": "dummy",
        "dtype": str(dtype).removeprefix("torch."),
        "seed": 0,
        "max_model_len": size.max_length,
        "max_num_seqs": size.rows,
        "gpu_memory_utilization": size.memory,
        "enable_prefix_caching": True,
        "async_scheduling": False,  # a token decides whether its row ends, forks or calls a tool
        "max_logprobs": 1,
        "generation_config": "vllm",
        "disable_log_stats": True,
        "worker_extension_cls": "trainer.engines.vllm.worker.TreeWorker",
    }
    if hasattr(config, "vision_config"):
        arguments |= {
            "mm_processor_cache_gb": 0,
            "mm_device_do_normalize": False,  # pixels come normalised, and would be normalised again
        }
    else:
        arguments["skip_tokenizer_init"] = True
    if not torch.cuda.is_available():
        arguments |= on_a_cpu(config, size, dtype)
    return arguments


def on_a_cpu(config, size: Size, dtype: torch.dtype) -> dict:
    """Without a GPU: no compilation, small blocks (128 by default), and a cache no larger than all rows can fill."""
    import psutil  # which vLLM needs itself

    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    token = 2 * text.num_hidden_layers * heads * width * dtype.itemsize
    memory = size.memory * psutil.virtual_memory().total
    return {
        "enforce_eager": True,
        "block_size": 32,
        "kv_cache_memory_bytes": int(min(memory, token * (size.max_length + 32) * size.rows)),
        "skip_mm_profiling": True,
    }
