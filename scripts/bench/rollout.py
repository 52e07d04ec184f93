"""Rollouts of one prompt with a picture: our tree against TRL's own generation, alternately in one process.

    python scripts/bench/rollout.py --preset cpu --rounds 3 --json rollout.json

Sides: our trees TkAm (k thoughts, m answers each); TRL 1.16's `_generate_single_turn` for as many rows as the tree has
leaves, and for as many as it has thoughts; and two passes of it, first thoughts, then answers with prompt and thought
prefilled again. For all sides the processor encodes the picture beforehand, and the vision tower's time is included.
All rollouts reach their token limits, so every side samples the same number of tokens.
"""

import dataclasses
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import torch
from bench_cli import benchmark_parser, run
from bench_model import Clock, adapter_of, build_model, build_processor, write_to_the_limit
from cases import FixedLengths, messages_of, question_of_length, write_pictures
from limit import report
from peft import get_peft_model
from PIL import Image
from stock import SAMPLING, stock_trainer

from model.qwen_module import Qwen2_5VLModule
from trainer.engines.prepacked import prepacked
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine


class Ours:
    """The forking engine on the benchmark's prompt."""

    def __init__(self, model, processor, question: str, image: str):
        module = Qwen2_5VLModule(model.config)
        module.processor = processor
        self.prompt = module.encode(messages_of(question), [Image.open(image)], [])
        eos = module.eos_token_ids(processor)
        self.engine = TransformersEngine(
            model.eval(), module, processor.tokenizer, Sampling(**SAMPLING), eos, module.forbidden_token_ids(processor)
        )

    def tree(self, think_num: int, answer_num: int, sizes: dict):
        policy = FixedLengths(think_num, answer_num, sizes["thought"], sizes["answer"])
        prompt = dataclasses.replace(self.prompt, features=None)  # each rollout runs the tower anew
        with torch.no_grad(), prepacked(self.engine.model):  # packed anew for each generation, as in training
            return self.engine.grow([prompt], policy, ["bench"])[0]


class Stock:
    """TRL's generation through its own trainer, the prompt's ids and pictures taken from its own tokenisation."""

    def __init__(self, trainer, question: str, image: str):
        self.trainer = trainer
        part = {"type": "image", "image": Image.open(image)}
        turn = {"role": "user", "content": [part, {"type": "text", "text": question}]}
        self.ids, _, self.media = trainer._tokenize_prompts([[turn]])

    def rows(self, count: int, length: int, written: list[list[int]] | None = None) -> list[list[int]]:
        """`count` completions of `length` tokens; row r continues the tokens written[r]."""
        written = written or [[]] * count
        ids = [self.ids[0] + tokens for tokens in written]
        media = {
            name: value.repeat(count, *[1] * (value.dim() - 1))
            if isinstance(value, torch.Tensor)
            else [value[0] + [0] * len(tokens) for tokens in written]
            for name, value in self.media.items()
        }
        self.trainer.generation_config.max_new_tokens = length
        return self.trainer._generate_single_turn(ids, None, media, count)[0]

    def two_passes(self, think_num: int, answer_num: int, sizes: dict) -> list[list[int]]:
        thoughts = self.rows(think_num, sizes["thought"])
        behind = [thought for thought in thoughts for _ in range(answer_num)]
        return self.rows(think_num * answer_num, sizes["answer"], behind)


def on_one_prompt(preset: dict, sizes: dict, folder: Path) -> tuple:
    """(model, processor, Ours, Stock): the preset's model with its adapter, and both sides on one picture prompt."""
    processor = build_processor()
    model = build_model(preset, processor)
    write_to_the_limit(model, processor)
    module = Qwen2_5VLModule(model.config)
    module.processor = processor
    image = write_pictures(folder, sizes["grid"], 1)[0]
    question = question_of_length(module, image, sizes["text_tokens"] + 2)
    leaves, length = sizes["think_num"] * sizes["answer_num"], sizes["thought"] + sizes["answer"]
    rows = [{"question": question, "image": image}] * 2
    adapter = adapter_of(preset, model)
    if adapter:
        model = get_peft_model(model, adapter)
    ours = Ours(model, processor, question, image)
    trainer = stock_trainer(model, processor, rows, leaves, length, preset, folder)
    return model, processor, ours, Stock(trainer, question, image)


def measure(preset: dict, sizes: dict, args, folder: Path) -> dict:
    model, _, ours, stock = on_one_prompt(preset, sizes, folder)
    K, M, length = sizes["think_num"], sizes["answer_num"], sizes["thought"] + sizes["answer"]
    one, chains = f"T{K}A1", f"T{K * M}A1"
    sides = {
        f"T{K}A{M}": lambda: ours.tree(K, M, sizes),
        f"stock {K * M} rows": lambda: stock.rows(K * M, length),
        one: lambda: ours.tree(K, 1, sizes),
        f"stock {K} rows": lambda: stock.rows(K, length),
        chains: lambda: ours.tree(K * M, 1, sizes),
        "two passes": lambda: stock.two_passes(K, M, sizes),
    }
    clock = Clock(preset["device"])
    for round_ in range(args.rounds):
        for name, side in sides.items():
            torch.manual_seed(round_)
            model.eval()
            grown = clock.run(name, side)
            if name == f"T{K}A{M}":
                tree, fed = grown, ours.engine.stats
            elif name == f"stock {K * M} rows":
                row_tokens = sum(map(len, grown))
    prompt_tokens = len(ours.prompt.ids)
    found = metrics(clock, sizes, tree, fed, row_tokens, prompt_tokens)
    return found | report(ours.engine.model, prompt_tokens, sizes, found[f"T{K}A{M}_s"])


def metrics(clock: Clock, sizes: dict, tree, fed: dict, row_tokens: int, prompt_tokens: int) -> dict:
    K, M = sizes["think_num"], sizes["answer_num"]
    seconds = clock.medians()
    mine, rows = seconds[f"T{K}A{M}"], seconds[f"stock {K * M} rows"]
    unique = prompt_tokens + tree.unique_tokens()
    assert fed["recomputed_tokens"] == 0
    return {
        "prompt_tokens": prompt_tokens,
        "tree_tokens": tree.unique_tokens(),
        "stock_row_tokens": row_tokens,
        "token_ratio": (K * M * prompt_tokens + row_tokens) / unique,
        "limit_of_cost": unique / (K * M * prompt_tokens + row_tokens),
        **{f"{name.replace(' ', '_')}_s": value for name, value in seconds.items()},
        "speedup": rows / mine,
        "speedup_over_two_passes": seconds["two passes"] / mine,
        "cost_vs_T4A1": mine / seconds[f"T{K}A1"],
        "cost_vs_stock_T4A1": mine / seconds[f"stock {K} rows"],
        "cost_of_chains": seconds[f"T{K * M}A1"] / mine,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run(benchmark_parser(__doc__, rounds=3), lambda *given: measure(*given, Path(folder)))
