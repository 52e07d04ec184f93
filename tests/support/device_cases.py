"""What a training process does on its device, as functions of device and size: small on a CPU, real on a GPU."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

import bench_cases  # noqa: F401  (puts the benchmarks on sys.path)
import torch
from bench_model import PRESETS, build_model, build_processor, write_to_the_limit
from cases import FixedLengths, question_of_length, write_pictures
from engine_cases import encode
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.trainer.utils import add_fused_lm_head
from whole_step import our_trainer

from model.qwen_module import Qwen2_5VLModule
from model.text_module import TextModule
from model.vlm_module import EncodedPrompt
from trainer.engines.batch_forward import BatchForward
from trainer.engines.sampling import Sampler, Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.logprobs.packing import build_plans, packed_forward
from trainer.logprobs.tree_attention import use_tree_attention

VOCAB = 1000


def text_model(device: str, dtype: torch.dtype, head_size: int, layers: int = 2, checkpointing: bool = False):
    """(module, model): a random Qwen2 with grouped heads and an adapter with dropout, in training mode."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=4 * head_size,
        intermediate_size=8 * head_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.05,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config).to(device, dtype)
    use_tree_attention(model)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    module = TextModule(config)
    lora = LoraConfig(r=8, lora_dropout=0.1, target_modules=module.lora_target_modules(model), init_lora_weights=False)
    model = get_peft_model(model, lora)
    model.enable_input_require_grads()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return module, model.train()


def tree_rows(trunk: int, branches: int, trunk_length: int, branch_length: int, seed: int = 0) -> list[list[int]]:
    """Random completions of a K x M tree."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda length: torch.randint(5, VOCAB, (length,), generator=generator).tolist()  # noqa: E731
    trunks = [draw(trunk_length) for _ in range(trunk)]
    return [above + draw(branch_length) for above in trunks for _ in range(branches)]


def text_prompt(length: int) -> EncodedPrompt:
    return EncodedPrompt(list(range(5, 5 + length)), torch.arange(length), length)


def packed_pass(module, model, prompt: EncodedPrompt, rows: list[list[int]]):
    """(R, T) log-probs of one packed forward pass, and the plan."""
    plans = build_plans([prompt], [0] * len(rows), rows, device=model.device)
    return packed_forward(model, module, plans)[0], plans[0]


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def gap_to_dense(device: str, dtype: torch.dtype, head_size: int) -> tuple[float, float]:
    """Largest and mean difference of packed and dense log-probs, without dropout."""
    module, model = text_model(device, dtype, head_size)
    model.eval()
    prompt, rows = text_prompt(40), tree_rows(3, 3, 150, 60)
    with torch.no_grad():
        packed, _ = packed_pass(module, model, prompt, rows)
        ids = torch.tensor([prompt.ids + row for row in rows], device=model.device)
        labels = ids.clone()
        labels[:, : len(prompt.ids)] = -100
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, fused_lm_head=True)
    gap = (packed - output.log_probs[:, -len(rows[0]) :]).abs()
    return gap.max().item(), gap.mean().item()


@dataclass(frozen=True)
class Pass:
    """A forward and backward pass: slots, seconds, and peak bytes above what was allocated before (0 on a CPU)."""

    slots: int
    seconds: float
    peak: int
    gradient: float


def forward_backward(module, model, prompt: EncodedPrompt, rows: list[list[int]]) -> Pass:
    """One update's passes over a packed tree; the largest gradient is finite or this fails."""
    cuda = model.device.type == "cuda"
    model.zero_grad()
    before = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    logps, plan = packed_pass(module, model, prompt, rows)
    logps.sum().backward()
    if cuda:
        torch.cuda.synchronize()
    largest = max(grad.abs().max().item() for grad in gradients(model).values())
    peak = torch.cuda.max_memory_allocated() - before if cuda else 0
    return Pass(plan.slots, time.perf_counter() - begin, peak, largest)


def checkpointing_gap(device: str, dtype: torch.dtype) -> float:
    """Largest difference of gradients with and without checkpointing, with dropout, as a share of the largest one."""
    found = []
    for checkpointing in (False, True):
        module, model = text_model(device, dtype, 32, checkpointing=checkpointing)
        torch.manual_seed(3)
        logps, _ = packed_pass(module, model, text_prompt(30), tree_rows(3, 2, 90, 30))
        logps.sum().backward()
        found.append(gradients(model))
    largest = max(grad.abs().max() for grad in found[0].values())
    return max(((found[0][name] - found[1][name]).abs().max() / largest).item() for name in found[0])


def engine_of(module, model, processor) -> TransformersEngine:
    """An engine whose rows reach their limits, since the end of a sequence is never sampled."""
    eos, forbidden = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
    engine = TransformersEngine(model, module, processor.tokenizer, Sampling(), eos, forbidden)
    engine.sampler = Sampler(Sampling(), {*eos, *forbidden})
    return engine


def grow_watched(module, model, processor, steps: int, watch) -> int:
    """Grows K x M trees of two prompts, with `watch(True)` before each decoding step and `watch(False)` after it.

    Returns the number of steps.
    """
    counted, real = itertools.count(1), BatchForward.step
    prompts = [encode(module, "a" * n, (56, 56)) for n in (3, 9)]

    def step(forward, tokens):
        watch(True)
        try:
            return real(forward, tokens)
        finally:
            next(counted)
            watch(False)

    BatchForward.step = step
    try:
        engine_of(module, model, processor).grow(prompts, FixedLengths(2, 2, steps, steps // 2), ["0", "1"])
    finally:
        BatchForward.step = real
    return next(counted) - 1


def train_two_steps(preset: dict, sizes: dict, folder: Path) -> dict[str, float]:
    """Two optimiser steps of our trainer with the preset's adapter, a frozen tower and random weights.

    Returns mean seconds per step, the losses' and gradients' finiteness, and on a GPU the peak bytes.
    """
    processor = build_processor()
    model = build_model(preset, processor)
    write_to_the_limit(model, processor)
    module = Qwen2_5VLModule(model.config)
    module.processor = processor
    module.freeze(model, freeze_vision=True)
    images = write_pictures(folder, sizes["grid"], 2)
    question = question_of_length(module, images[0], sizes["text_tokens"] + 2)
    rows = [{"question": question, "image": image} for image in images]
    cuda = preset["device"] == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    trainer = our_trainer(model, processor, rows, sizes, preset, folder)
    trainer.args.max_steps, trainer.args.logging_steps = 2, 1
    trainer.args.lr_scheduler_type = "constant"
    begin = time.perf_counter()
    trainer.train()
    seconds = (time.perf_counter() - begin) / 2
    logged = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    return {
        "steps": trainer.state.global_step,
        "step_seconds": seconds,
        "peak": torch.cuda.max_memory_allocated() if cuda else 0,
        "grad_norms": [entry["grad_norm"] for entry in logged],
        "slots": trainer.generation.rollout.trees[0].unique_tokens(),
    }


def small(preset: str = "cpu") -> tuple[dict, dict]:
    """(preset, sizes) of a whole step that a CPU does in seconds, with the adapter of the GPU's preset."""
    chosen = PRESETS[preset] | {"lora": PRESETS["gpu"]["lora"], "checkpointing": True}
    return chosen, chosen["sizes"] | {"thought": 12, "answer": 6, "grid": 8, "text_tokens": 70}
