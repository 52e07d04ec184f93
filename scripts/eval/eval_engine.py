"""The engine of an evaluation: this project's own on the model itself, or vLLM on a copy of its weights."""

import argparse
import sys
from contextlib import contextmanager

from eval_processes import Processes


@contextmanager
def evaluation_engine(args: argparse.Namespace, processes: Processes):
    """(engine, module) with the model in eval mode, adapters included, and the settings' sampling."""
    import torch

    from model.loading import load_policy
    from model.quantised import in_words, saved_quantisation
    from trainer.arguments import check_opened_thought
    from trainer.engines.merged_lora import merged_lora
    from trainer.engines.prepacked import prepacked
    from trainer.engines.sampling import Sampling
    from trainer.engines.transformers_engine import TransformersEngine

    device = f"cuda:{processes.device_index}" if torch.cuda.is_available() else "cpu"
    module, model, processor = load_policy(
        args.model_name_or_path,
        args.adapter_path,
        dtype=args.dtype,
        attn_implementation=args.attn_implementation,
        min_pixels=args.min_pixels,
        max_pixels=args.max_pixels,
        coordinate_frame=args.coordinate_frame,
        chat_template_kwargs=args.chat_template_kwargs,
    )
    check_opened_thought(args.thought_end, module)
    quantised = args.adapter_path and saved_quantisation(args.adapter_path)
    if quantised and processes.first:
        note = f"{args.adapter_path} was trained on {in_words(quantised)}, and is evaluated on {args.dtype} ones"
        print(note, file=sys.stderr)
    if processes.first:
        shared = f", {processes.count} processes" if processes.count > 1 else ""
        by = ", vLLM" if args.engine == "vllm" else ""
        print(f"{type(model).__name__} on {device}, {next(model.parameters()).dtype}{by}{shared}", file=sys.stderr)
    tokenizer = getattr(processor, "tokenizer", processor)
    sampling, eos_ids = Sampling(temperature=args.temperature), module.eos_token_ids(processor)
    forbidden_ids = module.forbidden_token_ids(processor)
    with torch.no_grad():
        if args.engine == "vllm":
            yield _served(args, processes, module, model.eval(), processor, sampling), module
            return
        model = model.to(device).eval()
        with merged_lora(model), prepacked(model):
            yield TransformersEngine(model, module, tokenizer, sampling, eos_ids, forbidden_ids), module


def _served(args, processes: Processes, module, model, processor, sampling):
    """vLLM with the weights of a model that stays on the CPU."""
    from trainer.engines.request_engine import RequestEngine
    from trainer.engines.sampling import Sampler
    from trainer.engines.vllm.size import Size
    from trainer.engines.vllm.start import colocated

    dtype = next(model.parameters()).dtype
    longest = model.config.get_text_config().max_position_embeddings
    size = Size(longest, rows=args.batch_size, memory=args.vllm_gpu_memory_utilization or 0.9)
    ends, forbidden = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
    serving = colocated(model, processor, dtype, size, ends, forbidden, processes.count, shown=False)
    serving.sync(model)

    def grown(prompts, trees, policy):
        serving.check_once(model, module, Sampler(sampling, forbidden), prompts, trees, policy)

    return RequestEngine(serving.requests, module.tokenizer, sampling, ends, grown=grown)
