"""The command line that the benchmarks share: a preset, its sizes, rounds, and the file for the results."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from bench_model import LORA, PRESETS


def benchmark_parser(doc: str, rounds: int) -> argparse.ArgumentParser:
    """--preset, --rounds, --json and one flag per size."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="cpu", help="gpu: random weights of the 3B model")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="runs of each side, alternating; medians are reported"
    )
    parser.add_argument(
        "--lora",
        action=argparse.BooleanOptionalAction,
        help="train an adapter, as users do, or all weights (default: the preset's)",
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    for name in PRESETS["cpu"]["sizes"]:
        parser.add_argument(f"--{name}", type=int, help="default: the preset's")
    return parser


def run(parser: argparse.ArgumentParser, measure: Callable[[dict, dict, argparse.Namespace], dict]) -> None:
    """Prints and writes the result of `measure(preset, sizes, args)`, on one thread; status 2 without the device."""
    args = parser.parse_args()
    preset = dict(PRESETS[args.preset])
    if args.lora is not None:
        preset["lora"] = LORA if args.lora else None
    if preset["device"] == "cuda" and not torch.cuda.is_available():
        parser.error("--preset gpu needs a CUDA device and none is visible: use --preset cpu")
    torch.set_num_threads(1)
    sizes = {name: getattr(args, name) or value for name, value in preset["sizes"].items()}
    trained = "LoRA" if preset.get("lora") else "all weights"
    print(f"{preset['dtype']} on {preset['device']}, {trained}, {sizes}", flush=True)
    metrics = measure(preset, sizes, args)
    for name, value in metrics.items():
        print(f"{name:26} {value:.6g}")
    if "share_of_bandwidth" in metrics:
        print(limit_of(metrics))
    if args.json:
        args.json.write_text(json.dumps(metrics, indent=2) + "\n")


def limit_of(metrics: dict) -> str:
    """What bounds a decoding step, in one sentence."""
    share = metrics["share_of_bandwidth"]
    limit = "memory bandwidth" if share > 0.5 else "arithmetic or the launch of operators, not memory bandwidth"
    read, speed = metrics["step_bytes"] / 1e6, metrics["bandwidth_bytes_per_s"] / 1e9
    return (
        f"a decoding step reads {read:.0f} MB, {metrics['step_ms_at_bandwidth']:.2f} ms at {speed:.0f} GB/s, and takes "
        f"{metrics['step_ms']:.2f} ms ({share:.0%}): the limit is {limit}"
    )
