"""Forward and backward of one micro-batch: packed against one row a leaf, alternately in one process.

    python scripts/bench/train_step.py --preset cpu --json train_step.json
    python scripts/bench/train_step.py --preset cpu --grow 4 8 16     # packed only: how the cost of a token grows

The peer is the dense call of TRL 1.16: rows of prompt and completion, the picture once a row, the fused LM head on
both sides. Weights, pictures and tokens are random, the architecture is real. On a CPU, times are CPU seconds of the
one thread, which other processes on the machine disturb less than the wall clock. Peak memory is the growth during one
step: of a forked child a side on a CPU, of the allocator on a GPU.
"""

import argparse
import ctypes
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import torch  # noqa: E402
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration  # noqa: E402
from trl.trainer.utils import add_fused_lm_head  # noqa: E402

from model.qwen_module import Qwen2_5VLModule  # noqa: E402
from model.vlm_module import EncodedPrompt  # noqa: E402
from trainer.packing import build_plans, packed_forward  # noqa: E402
from trainer.tree_attention import use_tree_attention  # noqa: E402

# Special ids count from the end of the vocabulary, so that sampled tokens below never hit one.
PRESETS = {
    "cpu": {
        "text": {
            "hidden_size": 512,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "intermediate_size": 1376,
            "vocab_size": 2048,
            "mrope": [8, 12, 12],
        },
        "vision": {"hidden_size": 192, "depth": 6, "num_heads": 6, "intermediate_size": 512, "full": [2, 5]},
        "sizes": {"think_num": 4, "answer_num": 4, "thought": 128, "answer": 32, "text_tokens": 60, "grid": 40},
        "device": "cpu",
        "dtype": "float32",
    },
    "gpu": {
        "text": {
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "intermediate_size": 11008,
            "vocab_size": 151936,
            "mrope": [16, 24, 24],
        },
        "vision": {
            "hidden_size": 1280,
            "depth": 32,
            "num_heads": 16,
            "intermediate_size": 3420,
            "full": [7, 15, 23, 31],
        },
        "sizes": {"think_num": 4, "answer_num": 4, "thought": 512, "answer": 64, "text_tokens": 60, "grid": 40},
        "device": "cuda",
        "dtype": "bfloat16",
        "checkpointing": True,  # TRL's default; without it the dense side alone needs more than a large GPU has
    },
}


def build_model(preset: dict):
    text, vision = dict(preset["text"]), dict(preset["vision"])
    mrope, vocab = text.pop("mrope"), text["vocab_size"]
    text |= {"bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": True}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": mrope}}
    vision |= {"fullatt_block_indexes": vision.pop("full"), "out_hidden_size": text["hidden_size"]}
    ids = {"image_token_id": vocab - 1, "video_token_id": vocab - 2}
    ids |= {"vision_start_token_id": vocab - 3, "vision_end_token_id": vocab - 4}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    torch.manual_seed(0)
    with torch.device(preset["device"]):
        model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=getattr(torch, preset["dtype"])).eval()
    if preset.get("checkpointing"):
        model.train()
        model.gradient_checkpointing_enable()
    use_tree_attention(model)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return Qwen2_5VLModule(config), model


def make_rows(config, sizes: dict):
    """(prompt, completions): one picture prompt, K random thoughts of M random answers each."""
    torch.manual_seed(1)
    vocab, grid = config.text_config.vocab_size - 4, sizes["grid"]
    draw = lambda count: torch.randint(vocab, (count,)).tolist()  # noqa: E731
    pads = [config.image_token_id] * (grid * grid // config.vision_config.spatial_merge_size**2)
    half = sizes["text_tokens"] // 2
    ids = [*draw(half), config.vision_start_token_id, *pads, config.vision_end_token_id]
    ids += draw(sizes["text_tokens"] - half)
    patch = 3 * config.vision_config.temporal_patch_size * config.vision_config.patch_size**2
    media = {"pixel_values": torch.randn(grid * grid, patch), "image_grid_thw": torch.tensor([[1, grid, grid]])}
    positions = Qwen2_5VLModule(config)._positions(ids, media)
    prompt = EncodedPrompt(ids, positions, int(positions.max()) + 1, media, media_key="picture")
    thoughts = [draw(sizes["thought"]) for _ in range(sizes["think_num"])]
    return prompt, [thought + draw(sizes["answer"]) for thought in thoughts for _ in range(sizes["answer_num"])]


def packed_step(module, model, prompt, rows):
    """(R, T) log-probs of the packed layout, planning included."""
    plans = build_plans([prompt], [0] * len(rows), rows, device=model.device)
    return packed_forward(model, module, plans)[0]


def dense_step(module, model, prompt, rows):
    """(R, T) log-probs of one row a leaf, as TRL calls the model."""
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


def run(step, module, model, prompt, rows):
    """(seconds, log-probs): forward and backward of a loss that weighs each token of each row differently."""
    clock = time.process_time if model.device.type == "cpu" else time.perf_counter
    model.zero_grad()
    begin = clock()
    log_probs = step(module, model, prompt, rows)
    weights = torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(2)).to(log_probs)
    (log_probs * weights).sum().backward()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - begin, log_probs.detach()


def peak_memory(*step_arguments) -> int:
    """Bytes by which memory grows at most during one step."""
    model = step_arguments[2]
    model.zero_grad()
    gc.collect()
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(*step_arguments)
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # or the child would grow into what the parent has freed
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        before = _resident("VmRSS")
        run(*step_arguments)
        os.write(writer, str(_resident("VmHWM") - before).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        grown = answer.read()
    assert os.waitpid(child, 0)[1] == 0 and grown, "the measuring child failed"
    return int(grown)


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def compare(module, model, sizes: dict, rounds: int) -> dict:
    prompt, rows = make_rows(module.config, sizes)
    case = (module, model, prompt, rows)
    begin = time.process_time()
    plan = build_plans([prompt], [0] * len(rows), rows)[0]
    plan_seconds = time.process_time() - begin
    memory = {"packed": peak_memory(packed_step, *case), "dense": peak_memory(dense_step, *case)}
    print(f"peak memory: packed {memory['packed'] / 1e6:.0f} MB, dense {memory['dense'] / 1e6:.0f} MB", flush=True)
    seconds, log_probs, gradients = {"packed": [], "dense": []}, {}, {}
    for _ in range(rounds):
        for name, step in (("packed", packed_step), ("dense", dense_step)):
            took, log_probs[name] = run(step, *case)
            seconds[name].append(took)
            gradients[name] = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            print(f"{name:6} {took:8.2f} s", flush=True)
    largest = max(g.abs().max().item() for g in gradients["dense"])
    gaps = [(a - b).abs().max().item() for a, b in zip(gradients["packed"], gradients["dense"], strict=True)]
    packed, dense = (statistics.median(seconds[name]) for name in ("packed", "dense"))
    return {
        "leaves": len(rows),
        "row_tokens": plan.row_tokens,
        "slots": plan.slots,
        "token_ratio": plan.row_tokens / plan.slots,
        "packed_s": packed,
        "dense_s": dense,
        "speedup": dense / packed,
        "speedup_over_token_ratio": dense / packed / (plan.row_tokens / plan.slots),
        "plan_share_of_step": plan_seconds / packed,
        "packed_peak_mb": memory["packed"] / 1e6,
        "dense_peak_mb": memory["dense"] / 1e6,
        "peak_memory_ratio": memory["packed"] / memory["dense"],
        "max_logprob_gap": (log_probs["packed"] - log_probs["dense"]).abs().max().item(),
        "max_grad_gap": max(gaps) / largest,
    }


def growth(module, model, sizes: dict, counts: list[int]) -> dict:
    """Packed milliseconds a slot with K = M = each of `counts`, and their ratio to the first."""
    figures = {}
    for count in counts:
        prompt, rows = make_rows(module.config, sizes | {"think_num": count, "answer_num": count})
        slots = build_plans([prompt], [0] * len(rows), rows)[0].slots
        took, _ = run(packed_step, module, model, prompt, rows)
        figures[f"ms_per_slot_{count}x{count}"] = 1000 * took / slots
        print(f"K=M={count:2}: {len(rows):4} leaves {slots:6} slots {took:8.2f} s {1000 * took / slots:6.2f} ms a slot")
    first = figures[f"ms_per_slot_{counts[0]}x{counts[0]}"]
    return figures | {f"growth_{n}x{n}": figures[f"ms_per_slot_{n}x{n}"] / first for n in counts[1:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="cpu", help="gpu: random weights of the 3B model")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each side, alternating; medians are printed")
    parser.add_argument("--grow", type=int, nargs="+", metavar="K", help="packed only, with K = M = each of these")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    for name in PRESETS["cpu"]["sizes"]:
        parser.add_argument(f"--{name}", type=int, help="default: the preset's")
    args = parser.parse_args()
    preset = PRESETS[args.preset]
    if preset["device"] == "cuda" and not torch.cuda.is_available():
        parser.error("--preset gpu needs a CUDA device and none is visible: use --preset cpu")
    torch.set_num_threads(1)
    sizes = {name: getattr(args, name) or value for name, value in preset["sizes"].items()}
    module, model = build_model(preset)
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {preset['dtype']}, {sizes}", flush=True
    )
    figures = growth(module, model, sizes, args.grow) if args.grow else compare(module, model, sizes, args.rounds)
    for name, value in figures.items():
        print(f"{name:24} {value:.6g}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
