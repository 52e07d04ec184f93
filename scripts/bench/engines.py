"""Rollouts of one prompt with a picture on each engine, alternately in one process of one environment.

    .venv-vllm/bin/python scripts/bench/engines.py --preset cpu --rounds 3 --json engines.json

Sides: this project's engine and vLLM, each for a tree TkAm (k thoughts, m answers each); vLLM for as many separate
completions as the tree has leaves, one request with n; and TRL 1.16's transformers generation for as many. vLLM gets
the weights before each rollout, which empties its caches; this is timed apart. All rollouts reach their token limits,
and every side encodes the picture anew. `tree_step_R_rows_ms`: median of the steps of vLLM's tree in which R rows get a
token.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import torch
from bench_cli import benchmark_parser, run
from bench_model import Clock, never_sampled
from cases import FixedLengths
from rollout import on_one_prompt
from stock import SAMPLING

from model.qwen_module import Qwen2_5VLModule
from trainer.engines.request_engine import RequestEngine
from trainer.engines.requests import Request
from trainer.engines.sampling import Sampling
from trainer.engines.vllm.size import Size
from trainer.engines.vllm.start import colocated


class OnVLLM:
    """vLLM in this process, on the benchmark's prompt.

    Attributes:
        steps: (rows that got a token, seconds) of each step of the last tree.
    """

    def __init__(self, model, processor, prompt, preset: dict, length: int, rows: int):
        module = Qwen2_5VLModule(model.config)
        module.processor = processor
        self.model, self.prompt, self.rows = model, prompt, rows
        dtype = getattr(torch, preset["dtype"])
        forbidden = never_sampled(module, processor)
        size, eos = Size(len(prompt.ids) + length, rows=rows), module.eos_token_ids(processor)
        self.serving = colocated(model, processor, dtype, size, eos, forbidden, processes=1, shown=False)
        self.requests = self.serving.requests
        self.engine = RequestEngine(self.requests, processor.tokenizer, Sampling(**SAMPLING), eos)
        self.steps: list[tuple[int, float]] = []
        self._time_steps(time.perf_counter if preset["device"] == "cuda" else time.process_time)

    def _time_steps(self, now) -> None:
        step = self.requests.step

        def timed():
            begin = now()
            sampled = step()
            self.steps.append((len(sampled), now() - begin))
            return sampled

        self.requests.step = timed

    def sync(self) -> None:
        with torch.no_grad():
            self.serving.sync(self.model)

    def tree(self, sizes: dict):
        policy = FixedLengths(sizes["think_num"], sizes["answer_num"], sizes["thought"], sizes["answer"])
        self.steps.clear()
        return self.engine.grow([self.prompt], policy, ["bench"])[0]

    def step_times(self) -> dict[str, float]:
        """Median milliseconds of the steps of the last tree, by the rows that got a token."""
        by_rows: dict[int, list[float]] = {}
        for rows, seconds in self.steps:
            by_rows.setdefault(rows, []).append(1000 * seconds)
        return {f"tree_step_{rows}_rows_ms": statistics.median(found) for rows, found in sorted(by_rows.items())}

    def separate(self, length: int) -> list[list[int]]:
        """`rows` completions from one request, with vLLM's own sampler."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.sample.sampler import Sampler

        from trainer.engines.vllm.media import engine_input

        ours = self._swap(Sampler())
        try:
            request = Request(f"flat {next(RequestEngine.names)}", self.prompt.ids, [(0, self.prompt)], length, None)
            parameters = SamplingParams(
                n=self.rows,
                max_tokens=length,
                min_tokens=length,
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                **SAMPLING,
            )
            engine = self.requests.engine
            given = engine_input(request, self.model.config, self.requests.version)
            engine.add_request(request.name, given, parameters, lora_request=self.requests.lora)
            while engine.has_unfinished_requests():
                outputs = engine.step()
            return [completion.token_ids for output in outputs for completion in output.outputs]
        finally:
            self._swap(ours)

    def _swap(self, sampler):
        """Exchanges the worker's sampler; returns the former one."""

        def exchange(worker):
            former, worker.model_runner.sampler = worker.model_runner.sampler, sampler
            return former

        return self.requests.engine.collective_rpc(exchange)[0]


def measure(preset: dict, sizes: dict, args, folder: Path) -> dict:
    if preset["device"] == "cpu":
        torch.compiler.set_stance("force_eager")  # vLLM's own sampler would compile a C++ kernel
    model, processor, ours, stock = on_one_prompt(preset, sizes, folder)
    K, M, length = sizes["think_num"], sizes["answer_num"], sizes["thought"] + sizes["answer"]
    served = OnVLLM(model, processor, ours.prompt, preset, length, K * M)
    clock, sampled = Clock(preset["device"]), {}
    sides = {
        "own engine": lambda sizes, length: ours.tree(K, M, sizes),
        "vllm trees": lambda sizes, length: served.tree(sizes),
        f"vllm n {K * M}": lambda sizes, length: served.separate(length),
        "trl generate": lambda sizes, length: stock.rows(K * M, length),
    }
    short = sizes | {"thought": 4, "answer": 2}
    for round_ in range(args.rounds + 1):
        if round_ == 1:  # the first round is short, and warms up
            clock = Clock(preset["device"])
        for name, side in sides.items():
            torch.manual_seed(round_)
            model.eval()
            if name.startswith("vllm"):
                clock.run("sync", served.sync)
            sampled[name] = clock.run(name, side, *((sizes, length) if round_ else (short, 6)))
    found = metrics(clock, sampled, served.engine.stats, len(ours.prompt.ids), K * M * length)
    return found | served.step_times()


def metrics(clock: Clock, sampled: dict, stats: dict, prompt_tokens: int, row_tokens: int) -> dict:
    seconds = clock.medians()
    tree, other = sampled["vllm trees"], sampled["own engine"]
    assert tree.unique_tokens() == other.unique_tokens(), "both trees reach the limits"
    flat = next(name for name in sampled if name.startswith("vllm n"))
    for name in (flat, "trl generate"):
        assert sum(map(len, sampled[name])) == row_tokens, f"{name} reaches the limits"
    mine = seconds["vllm trees"]
    counts = {name: stats[name] for name in ("requests", "sent_tokens", "cached_tokens", "computed_tokens")}
    return {
        "prompt_tokens": prompt_tokens,
        "tree_tokens": tree.unique_tokens(),
        "row_tokens": row_tokens,
        **{f"{name.replace(' ', '_')}_s": value for name, value in seconds.items()},
        "vllm_trees_of_own_engine": mine / seconds["own engine"],
        "vllm_trees_of_vllm_flat": mine / seconds[flat],
        "vllm_trees_of_trl_generate": mine / seconds["trl generate"],
        **counts,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run(benchmark_parser(__doc__, rounds=3), lambda *given: measure(*given, Path(folder)))
