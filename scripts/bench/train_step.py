"""Forward and backward of one micro-batch: packed against one row per leaf, alternately in one process.

    python scripts/bench/train_step.py --preset cpu --json train_step.json
    python scripts/bench/train_step.py --preset cpu --grow 4 8 16     # packed only: growth of the cost per token

The baseline is the dense call of TRL 1.16: rows of prompt and completion, the picture once per row, the fused LM head
on both sides. A second baseline is the package prefix-grouper, if it is installed. Weights, pictures and tokens are
random, the architecture is real. On a CPU, times are CPU seconds of a single thread. Peak memory is the growth during
one step: on a CPU of a forked child per side, on a GPU of the allocator.
"""

import ctypes
import gc
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import torch
from bench_cli import benchmark_parser, run
from bench_model import FIRST_FREE_ID, Clock, adapter_of, build_model, build_processor
from grouped_peer import INSTALLED, grouped_step
from peft import get_peft_model
from trl.trainer.utils import add_fused_lm_head

from model.qwen_module import Qwen2_5VLModule
from model.vlm_module import EncodedPrompt
from trainer.logprobs.packing import build_plans, packed_forward
from trainer.logprobs.tree_attention import use_tree_attention


def prepared_model(preset: dict):
    """(module, model) ready for both layouts: tree attention, fused head, checkpointing and adapter of the preset.

    The adapter is without dropout, with which the two layouts would differ; the vision tower is then frozen.
    """
    model = build_model(preset, build_processor())
    module = Qwen2_5VLModule(model.config)
    if preset.get("checkpointing"):
        model.train()
        model.gradient_checkpointing_enable()
    use_tree_attention(model)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    adapter = adapter_of(preset, model, lora_dropout=0.0)
    if adapter:
        model = get_peft_model(model, adapter)
        model.enable_input_require_grads()
        move_off_zero(model)
    return module, model


def move_off_zero(model) -> None:
    """Gives LoRA's B random weights: at zero, A would have no gradient to compare."""
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.01)


def make_rows(config, sizes: dict):
    """(prompt, completions): one picture prompt, K random thoughts of M random answers each."""
    torch.manual_seed(1)
    vocab, grid = config.text_config.vocab_size, sizes["grid"]
    draw = lambda count: torch.randint(FIRST_FREE_ID, vocab, (count,)).tolist()  # noqa: E731
    pads = [config.image_token_id] * (grid * grid // config.vision_config.spatial_merge_size**2)
    half = sizes["text_tokens"] // 2
    ids = [*draw(half), config.vision_start_token_id, *pads, config.vision_end_token_id]
    ids += draw(sizes["text_tokens"] - half)
    patch = 3 * config.vision_config.temporal_patch_size * config.vision_config.patch_size**2
    media = {"pixel_values": torch.randn(grid * grid, patch), "image_grid_thw": torch.tensor([[1, grid, grid]])}
    module = Qwen2_5VLModule(config)
    module.processor = build_processor()
    positions = module._positions(ids, media)
    prompt = EncodedPrompt(ids, positions, int(positions.max()) + 1, media, media_key="picture")
    thoughts = [draw(sizes["thought"]) for _ in range(sizes["think_num"])]
    return prompt, [thought + draw(sizes["answer"]) for thought in thoughts for _ in range(sizes["answer_num"])]


def packed_step(module, model, prompt, rows):
    """(R, T) log-probs of the packed layout, planning included."""
    plans = build_plans([prompt], [0] * len(rows), rows, device=model.device)
    return packed_forward(model, module, plans)[0]


def dense_step(module, model, prompt, rows):
    """(R, T) log-probs with one row per leaf, called as in TRL."""
    ids = torch.tensor([[*prompt.ids, *row] for row in rows], device=model.device)
    labels = ids.clone()
    labels[:, : len(prompt.ids)] = -100
    output = model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == module.config.image_token_id).int(),
        pixel_values=prompt.media["pixel_values"].repeat(len(rows), 1).to(model.device),
        image_grid_thw=prompt.media["image_grid_thw"].repeat(len(rows), 1).to(model.device),
        labels=labels,
        fused_lm_head=True,
    )
    return output.log_probs[:, -len(rows[0]) :]


def forward_backward(step, module, model, prompt, rows):
    """Log-probs; the weights get gradients of a loss that weights each token of each row differently."""
    model.zero_grad()
    log_probs = step(module, model, prompt, rows)
    weights = torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(2)).to(log_probs)
    (log_probs * weights).sum().backward()
    return log_probs.detach()


def peak_memory(*step_arguments) -> int:
    """Peak growth of memory during one step, in bytes."""
    model = step_arguments[2]
    model.zero_grad()
    gc.collect()
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        forward_backward(*step_arguments)
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # else the child would reuse memory that the parent has freed
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        before = _resident("VmRSS")
        forward_backward(*step_arguments)
        os.write(writer, str(_resident("VmHWM") - before).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        grown = answer.read()
    assert os.waitpid(child, 0)[1] == 0 and grown, "the child that measures memory failed"
    return int(grown)


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def compare(module, model, device: str, sizes: dict, rounds: int) -> dict:
    prompt, rows = make_rows(module.config, sizes)
    case = (module, model, prompt, rows)
    begin = time.process_time()
    plan = build_plans([prompt], [0] * len(rows), rows)[0]
    plan_seconds = time.process_time() - begin
    memory = {"packed": peak_memory(packed_step, *case), "dense": peak_memory(dense_step, *case)}
    print(f"peak memory: packed {memory['packed'] / 1e6:.0f} MB, dense {memory['dense'] / 1e6:.0f} MB", flush=True)
    sides = {"packed": packed_step, "dense": dense_step} | ({"grouped": grouped_step} if INSTALLED else {})
    clock, log_probs, gradients = Clock(device), {}, {}
    for _ in range(rounds):
        for name, step in sides.items():
            log_probs[name] = clock.run(name, forward_backward, step, *case)
            gradients[name] = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    row_tokens = sum(len(prompt.ids) + len(row) for row in rows)
    seconds, limit = clock.medians(), row_tokens / plan.slots
    gaps = {name: _gaps(log_probs, gradients, name) for name in sides if name != "dense"}
    return {
        "leaves": len(rows),
        "row_tokens": row_tokens,
        "slots": plan.slots,
        "token_ratio": limit,
        "limit_of_cost": 1 / limit,
        **{f"{name}_s": value for name, value in seconds.items()},
        "speedup": seconds["dense"] / seconds["packed"],
        "speedup_over_token_ratio": seconds["dense"] / seconds["packed"] / limit,
        "plan_share_of_step": plan_seconds / seconds["packed"],
        "packed_peak_mb": memory["packed"] / 1e6,
        "dense_peak_mb": memory["dense"] / 1e6,
        "peak_memory_ratio": memory["packed"] / memory["dense"],
        "max_logprob_gap": gaps["packed"][0],
        "max_grad_gap": gaps["packed"][1],
        **_grouped_metrics(seconds, gaps, row_tokens, prompt, rows),
    }


def _gaps(log_probs: dict, gradients: dict, name: str) -> tuple[float, float]:
    """Largest difference from the dense side: of a log-prob, and of a gradient as a share of the largest gradient."""
    largest = max(g.abs().max().item() for g in gradients["dense"])
    pairs = zip(gradients[name], gradients["dense"], strict=True)
    gap = max((a - b).abs().max().item() for a, b in pairs) / largest
    return (log_probs[name] - log_probs["dense"]).abs().max().item(), gap


def _grouped_metrics(seconds, gaps, row_tokens, prompt, rows) -> dict:
    if "grouped" not in gaps:
        return {}
    return {
        "grouped_tokens": len(prompt.ids) + sum(map(len, rows)),
        "grouped_speedup": seconds["dense"] / seconds["grouped"],
        "grouped_token_ratio": row_tokens / (len(prompt.ids) + sum(map(len, rows))),
        "grouped_max_logprob_gap": gaps["grouped"][0],
        "grouped_max_grad_gap": gaps["grouped"][1],
    }


def growth(module, model, device: str, sizes: dict, counts: list[int]) -> dict:
    """Milliseconds per slot of the packed layout, with K = M = each of `counts`, and their ratios to the first."""
    metrics = {}
    for count in counts:
        prompt, rows = make_rows(module.config, sizes | {"think_num": count, "answer_num": count})
        slots = build_plans([prompt], [0] * len(rows), rows)[0].slots
        clock, name = Clock(device), f"K=M={count} {slots} slots"
        clock.run(name, forward_backward, packed_step, module, model, prompt, rows)
        metrics[f"slots_{count}x{count}"] = slots
        metrics[f"ms_per_slot_{count}x{count}"] = 1000 * clock.medians()[name] / slots
    first = metrics[f"ms_per_slot_{counts[0]}x{counts[0]}"]
    return metrics | {f"growth_{n}x{n}": metrics[f"ms_per_slot_{n}x{n}"] / first for n in counts[1:]}


def measure(preset: dict, sizes: dict, args) -> dict:
    module, model = prepared_model(preset)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters", flush=True)
    if args.grow:
        return growth(module, model, preset["device"], sizes, args.grow)
    return compare(module, model, preset["device"], sizes, args.rounds)


if __name__ == "__main__":
    parser = benchmark_parser(__doc__, rounds=1)
    parser.add_argument("--grow", type=int, nargs="+", metavar="K", help="packed only, with K = M = each of these")
    run(parser, measure)
