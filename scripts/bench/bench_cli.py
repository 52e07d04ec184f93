"""The command line that the benchmarks share: a preset, its sizes, rounds, and the file for the results."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from bench_model import PRESETS


def benchmark_parser(doc: str, rounds: int) -> argparse.ArgumentParser:
    """--preset, --rounds, --json and one flag per size."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="cpu", help="gpu: random weights of the 3B model")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="runs of each side, alternating; medians are reported"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    for name in PRESETS["cpu"]["sizes"]:
        parser.add_argument(f"--{name}", type=int, help="default: the preset's")
    return parser


def run(parser: argparse.ArgumentParser, measure: Callable[[dict, dict, argparse.Namespace], dict]) -> None:
    """Prints and writes the result of `measure(preset, sizes, args)`, on one thread; status 2 without the device."""
    args = parser.parse_args()
    preset = PRESETS[args.preset]
    if preset["device"] == "cuda" and not torch.cuda.is_available():
        parser.error("--preset gpu needs a CUDA device and none is visible: use --preset cpu")
    torch.set_num_threads(1)
    sizes = {name: getattr(args, name) or value for name, value in preset["sizes"].items()}
    print(f"{preset['dtype']} on {preset['device']}, {sizes}", flush=True)
    metrics = measure(preset, sizes, args)
    for name, value in metrics.items():
        print(f"{name:26} {value:.6g}")
    if args.json:
        args.json.write_text(json.dumps(metrics, indent=2) + "\n")
