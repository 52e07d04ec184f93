"""whole_step.py with vLLM on both sides: this project's trees, and TRL's trainer with vLLM in its process.

On a CPU TRL cannot start and update vLLM by itself. What it lacks is given to it here, as this project's own engine
has it: eager mode, blocks of 32 tokens and a small cache, and weights by `reload_weights`, since vLLM's packed layers
refuse the single weights that TRL sends.
"""

from functools import partial
from pathlib import Path

import torch
from stock import stock_trainer

from trainer.engines.vllm.engine_arguments import on_a_cpu
from trainer.engines.vllm.process_state import process_state_kept
from trainer.engines.vllm.size import Size
from trainer.engines.vllm.start import ENVIRONMENT, ON_A_CPU
from trainer.engines.weights import whole_weights

MEMORY = 0.3  # share of a GPU's memory for each of the two engines
OURS = {"use_vllm": True, "vllm_gpu_memory_utilization": MEMORY}


def stock_on_vllm(model, processor, rows: list[dict], leaves: int, length: int, preset: dict, folder: Path):
    """`stock_trainer` that samples with vLLM, no special tokens and every completion to its limit."""
    from trl.generation import vllm_generation

    import trainer.engines.vllm.colocated  # noqa: F401  (vLLM with what this environment needs)

    save_for_vllm(model, processor, folder / "model")
    size = Size(2048, rows=leaves, memory=MEMORY)
    banned = dict.fromkeys(processor.tokenizer.all_special_ids, -100.0)
    settings = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": MEMORY,
        "vllm_max_model_length": size.max_length,
        "generation_kwargs": {"min_tokens": length, "ignore_eos": True, "logit_bias": banned},
    }
    arguments = (model, processor, rows, leaves, length, preset, folder)
    if preset["device"] != "cpu":
        return stock_trainer(*arguments, **settings)
    torch.compiler.set_stance("force_eager")  # vLLM's own sampler would compile a C++ kernel
    vllm_generation.VLLMGeneration.sync_weights = reload
    original = vllm_generation.LLM
    vllm_generation.LLM = partial(original, **on_a_cpu(model.config, size, next(model.parameters()).dtype))
    try:
        with process_state_kept(ENVIRONMENT | ON_A_CPU):
            return stock_trainer(*arguments, **settings)
    finally:
        vllm_generation.LLM = original


def save_for_vllm(model, processor, folder: Path) -> None:
    """TRL starts vLLM from the folder that a model was loaded from."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    model.name_or_path = str(folder)


@torch.no_grad()
def reload(generation) -> None:
    """`VLLMGeneration.sync_weights` for a CPU."""
    generation.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": whole_weights(generation.model)})
    generation.llm.reset_prefix_cache()
