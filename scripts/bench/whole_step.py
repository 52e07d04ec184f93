"""One whole optimiser step (media, rollout, rewards, loss, update): ours against TRL's, alternately in one process.

    python scripts/bench/whole_step.py --preset cpu --rounds 3 --json whole_step.json
    .venv-vllm/bin/python scripts/bench/whole_step.py --vllm --rounds 3        # both sides sample with vLLM

Both sides are complete trainers on equal models with one prompt and one picture per step: ours grows K thoughts x M
answers, TRL 1.16's GRPOTrainer as many completions as the tree has leaves, all of the same length. `train()` of one
step is timed, including its start-up, but not the garbage collection over all that was imported, which `train()` does
once per run (0.3 s on both sides). With `--vllm` both sides sample with vLLM (`both_on_vllm.py`), and a first step of
each is not timed. The vision tower and the merger are frozen on both sides, as in training by default
(`--train_tower` trains them, too); all other weights are trained, with AdamW, or with `--lora` an adapter.
"""

import dataclasses
import gc
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

import both_on_vllm
from bench_cli import benchmark_parser, run
from bench_model import Clock, adapter_of, build_model, build_processor, never_sampled, write_to_the_limit
from cases import FixedLengths, messages_of, question_of_length, write_pictures
from datasets import Dataset
from stock import ONE_STEP, stock_trainer, sum_reward

from config.grpo_config import GRPOConfig
from model.qwen_module import Qwen2_5VLModule
from trainer.grpo_ma_trainer import GRPOMATrainer

PROMPTS = 4


def our_trainer(model, processor, rows: list[dict], sizes: dict, preset: dict, folder, **settings) -> GRPOMATrainer:
    """Our trainer on the same rows; its policy forks by length (see `FixedLengths`)."""
    lengths = {"think_num": sizes["think_num"], "answer_num": sizes["answer_num"]}
    policy = FixedLengths(**lengths, thought=sizes["thought"], answer=sizes["answer"])
    args = GRPOConfig(
        output_dir=str(folder),
        method="grpo_ma",
        **lengths,
        max_thought_length=sizes["thought"],
        max_answer_length=sizes["answer"],
        use_cpu=preset["device"] == "cpu",
        bf16=preset["dtype"] == "bfloat16",
        gradient_checkpointing=preset.get("checkpointing", False),
        **ONE_STEP,
        **settings,
    )
    module = Qwen2_5VLModule(model.config)
    module.processor = processor
    if args.use_vllm:
        banned = never_sampled(module, processor)
        module.forbidden_token_ids = lambda processor: banned
    given = {"processing_class": processor, "module": module, "peft_config": adapter_of(preset, model)}
    trainer = GRPOMATrainer(model, sum_reward, args, _dataset(rows), **given)
    trainer.method = dataclasses.replace(trainer.method, policy=lambda batch: policy)
    return trainer


def _dataset(rows: list[dict]) -> Dataset:
    records = []
    for i, row in enumerate(rows):
        record = {"id": f"bench-{i}", "question_type": "bench", "question": row["question"], "answer": 0, "videos": []}
        record |= {"images": [row["image"]], "messages": messages_of(row["question"]), "extra": {}}
        records.append({"prompt": row["question"], "record": json.dumps(record)})
    return Dataset.from_list(records)


def measure(preset: dict, sizes: dict, args, folder: Path) -> dict:
    processor = build_processor()
    models = [build_model(preset, processor) for _ in range(2)]
    module = Qwen2_5VLModule(models[0].config)
    module.processor = processor
    for model in models:
        write_to_the_limit(model, processor)
        module.freeze(model, freeze_vision=not args.train_tower)
    tower_calls = count_calls(models[0].model.visual)
    images = write_pictures(folder, sizes["grid"], PROMPTS)
    question = question_of_length(module, images[0], sizes["text_tokens"] + 2)
    rows = [{"question": question, "image": image} for image in images]
    leaves, length = sizes["think_num"] * sizes["answer_num"], sizes["thought"] + sizes["answer"]
    ours = our_trainer(models[0], processor, rows, sizes, preset, folder, **(both_on_vllm.OURS if args.vllm else {}))
    stock_side = both_on_vllm.stock_on_vllm if args.vllm else stock_trainer
    stock = stock_side(models[1], processor, rows, leaves, length, preset, folder)
    ours.forward.checked = True  # a run checks only its first micro-batch, not every step

    if args.vllm:  # its kernels warm up, and a run compares log-probs with the policy's once
        ours.train()
        stock.train()
        tower_calls.clear()
    gc.collect()
    gc.freeze()  # `train()` collects garbage once per run, not per step
    clock = Clock(preset["device"])
    for _ in range(args.rounds):
        clock.run("ours", ours.train)
        clock.run("stock", stock.train)
    seconds = clock.medians()
    ratios = [stock / ours for ours, stock in zip(clock.seconds["ours"], clock.seconds["stock"], strict=True)]
    rollout = ours.generation.rollout
    prompt, tree = len(rollout.prompts[0].ids), rollout.trees[0].unique_tokens()
    row_tokens = sum(prompt + len(rollout.completion(row)) for row in range(leaves))
    return {
        "leaves": leaves,
        "row_tokens": row_tokens,
        "unique_tokens": prompt + tree,
        "token_ratio": row_tokens / (prompt + tree),
        "limit_of_cost": (prompt + tree) / row_tokens,
        "ours_s": seconds["ours"],
        "stock_s": seconds["stock"],
        "speedup": seconds["stock"] / seconds["ours"],
        "speedup_lowest": min(ratios),
        "speedup_highest": max(ratios),
        "tower_calls_per_picture": len(tower_calls) / args.rounds,
    }


def count_calls(layer) -> list[int]:
    """A list that grows by one entry with each call of the layer."""
    calls = []
    layer.register_forward_pre_hook(lambda *given: calls.append(1))
    return calls


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        parser = benchmark_parser(__doc__, rounds=3)
        parser.add_argument("--vllm", action="store_true", help="both sides sample with vLLM (.venv-vllm)")
        parser.add_argument("--train_tower", action="store_true", help="train the vision tower and the merger, too")
        run(parser, lambda *given: measure(*given, Path(folder)))
