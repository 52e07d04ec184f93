"""Time and memory of the block mask that flex_attention gets, from `subtree_end` alone and by torch's own function.

    python scripts/bench/block_mask.py [--slots 4096 16384 65536] [--torch_up_to 4096] [--rounds 3] [--json FILE]

The forest is one prompt with thoughts and answers. torch's `create_block_mask` builds the N x N matrix first; it is
timed up to --torch_up_to slots only. Times are medians in milliseconds of one CPU thread; memory is the peak of what a
call allocated, in MB, by torch's profiler.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

use_checkout()

import torch
from torch.nn.attention.flex_attention import create_block_mask
from torch.profiler import ProfilerActivity, profile

from trainer.logprobs.block_mask import tree_block_mask


def forest(slots: int) -> torch.Tensor:
    """(N,) `subtree_end` of a prompt of half the slots, four thoughts and four answers below each."""
    ends = torch.full((slots,), slots)
    part = slots // 2 // 4
    for thought in range(4):
        start, end = slots // 2 + thought * part, slots // 2 + (thought + 1) * part
        ends[start:end] = end
        for answer in range(4):
            ends[start + part // 2 + answer * part // 8 : start + part // 2 + (answer + 1) * part // 8] = (
                start + part // 2 + (answer + 1) * part // 8
            )
    return ends


def by_torch(ends: torch.Tensor):
    def sees(batch, head, query, key):
        return (key <= query) & (query < ends[key])

    return create_block_mask(sees, None, None, len(ends), len(ends), device="cpu")


def measured(make, ends: torch.Tensor, rounds: int) -> dict[str, float]:
    make(ends)
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        make(ends)
        seconds.append(time.perf_counter() - started)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        make(ends)
    memory = peak = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            memory += event.nbytes()
            peak = max(peak, memory)
    return {"ms": 1e3 * median(seconds), "MB": peak / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slots", type=int, nargs="+", default=[4096, 16384, 65536], help="slots of the forest")
    parser.add_argument("--torch_up_to", type=int, default=4096, help="most slots for torch's own function")
    parser.add_argument("--rounds", type=int, default=3, help="timed calls of each")
    parser.add_argument("--json", help="file the result goes to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = {}
    for slots in args.slots:
        ends = forest(slots)
        result[slots] = {"ours": measured(tree_block_mask, ends, args.rounds)}
        if slots <= args.torch_up_to:
            result[slots]["torch"] = measured(by_torch, ends, args.rounds)
        for name, found in result[slots].items():
            print(f"{slots:>7} slots, {name:<5} {found['ms']:9.2f} ms {found['MB']:9.2f} MB")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
