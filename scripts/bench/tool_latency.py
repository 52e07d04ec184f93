"""Agents with a slow tool: calls during decoding against calls one after another, in one process.

    python scripts/bench/tool_latency.py --preset cpu --latency 0.5 --json tool_latency.json

One prompt, `think_num * answer_num` chains of `--turns` steps of `answer` tokens; each step but the last is followed by
a call that sleeps and a text observation. One after another means that each call blocks everything else, as in a loop
that steps through its environments in turn. Both sides sample the same tokens; seconds are wall-clock time.
"""

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
from bench_model import build_model, build_processor, write_to_the_limit

from model.qwen_module import Qwen2_5VLModule
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.policies.policy import Policy
from trainer.policies.segment import Call, Observed, Segment


class Searching(Policy):
    """`chains` chains of `turns` steps; each step but the last is followed by the result of a slow tool."""

    def __init__(self, chains: int, turns: int, length: int, latency: float, found: list[int], blocking: bool):
        self.leaves, self.turns, self.latency, self.found, self.blocking = chains, turns, latency, found, blocking
        self.first, self.step = Segment("step", chains, length), Segment("step", 1, length)

    def start(self) -> Segment:
        return self.first

    def next(self, tree, node_index: int, ended: str) -> Segment | Call | None:
        if ended == "observed":
            return self.step
        if len(tree.path(node_index)) > 2 * (self.turns - 1):
            return None
        if self.blocking:
            time.sleep(self.latency)
        return Call(self._search)

    def _search(self) -> Observed:
        if not self.blocking:
            time.sleep(self.latency)
        return Observed(self.found)


def measure(preset: dict, sizes: dict, args) -> dict:
    processor = build_processor()
    model = build_model(preset, processor)
    write_to_the_limit(model, processor)
    module = Qwen2_5VLModule(model.config)
    module.processor = processor
    eos, forbidden = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
    engine = TransformersEngine(model, module, processor.tokenizer, Sampling(), eos, forbidden)
    prompt = module.encode([{"role": "user", "content": "Who was it?"}])
    found = processor.tokenizer.encode("it was found in the archive " * 10, add_special_tokens=False)
    seconds, trees = {}, {}
    for name in ("beside decoding", "one after another"):
        chains, blocking = sizes["think_num"] * sizes["answer_num"], name == "one after another"
        policy = Searching(chains, args.turns, sizes["answer"], args.latency, found, blocking)
        torch.manual_seed(0)
        begin = time.perf_counter()
        trees[name] = engine.grow([prompt], policy, ["bench"])
        seconds[name] = time.perf_counter() - begin
    beside, after = seconds.values()
    assert trees["beside decoding"] == trees["one after another"]
    return {"calls": engine.stats["calls"], "beside_s": beside, "one_after_another_s": after, "speedup": after / beside}


if __name__ == "__main__":
    parser = benchmark_parser(__doc__, rounds=1)
    parser.add_argument("--latency", type=float, default=0.5, help="seconds per call")
    parser.add_argument("--turns", type=int, default=4, help="steps per chain")
    run(parser, measure)
