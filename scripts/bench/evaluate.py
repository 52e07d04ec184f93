"""Greedy evaluation in batches against one record at a time: the same tokens, and the speed-up.

    python scripts/bench/evaluate.py --batch_size 32 --rounds 3 --json evaluate.json

The records are the demo's held-out ones of several tasks, with and without pictures, of mixed lengths; the model is the
demo's tiny one in float32. Both sides use `trainer.evaluation.predict`, alternately in one process; both decode media
and score answers. Every completion has --max_new_tokens tokens. Seconds are CPU seconds of one thread, since the wall
clock would include other work of the machine.
"""

import argparse
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

import torch

from dataset.dataset_grpo import build_dataset, read_row
from model.loading import load_policy
from task.task_loader import load_tasks
from trainer.engines.sampling import Sampler, Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.evaluation.predict import predict

FAMILIES = ("affordance", "detection", "math", "ocr", "reasoning", "trajectory")


def records(count: int, tasks: dict):
    """`count` rows of all families in turn, so that every batch is mixed."""
    families = []
    for name in FAMILIES:
        rows = build_dataset([str(ROOT / "metadata" / "demo" / f"{name}_test.yaml")], tasks)
        families.append([rows[i] for i in range(len(rows))])
    mixed = [rows[i] for i in range(max(map(len, families))) for rows in families if i < len(rows)]
    assert len(mixed) >= count, f"the demo has {len(mixed)} records of these families"
    return mixed[:count]


def tiny_engine():
    """(engine, module) of the demo's model: greedy, and never ending a completion before its limit."""
    module, model, processor = load_policy(str(ROOT / "scripts" / "demo" / "tiny_model"), dtype="float32")
    eos, forbidden, greedy = module.eos_token_ids(processor), module.forbidden_token_ids(processor), Sampling(0.0)
    engine = TransformersEngine(model.eval(), module, processor.tokenizer, greedy, eos, forbidden)
    engine.sampler = Sampler(greedy, [*eos, *forbidden])
    return engine, module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--max_new_tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=1, help="runs of each side, alternating; medians are reported")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tasks = load_tasks()
    rows, (engine, module) = records(args.records, tasks), tiny_engine()

    def run(batch_size: int) -> tuple[float, list[dict]]:
        started = time.process_time()
        found = predict(engine, module, rows, tasks, max_new_tokens=args.max_new_tokens, batch_size=batch_size)
        return time.process_time() - started, found

    predict(engine, module, rows, tasks, max_new_tokens=2, batch_size=32)  # starts the verifiers
    seconds = {"batched": [], "one_by_one": []}
    for _ in range(args.rounds):
        batched, together = run(args.batch_size)
        alone, single = run(1)
        assert together == single, "batching changed a prediction"
        seconds["batched"].append(batched)
        seconds["one_by_one"].append(alone)
    metrics = {f"{side}_s": statistics.median(values) for side, values in seconds.items()}
    metrics |= {
        "records": len(rows),
        "tasks": len({read_row(row)["question_type"] for row in rows}),
        "tokens": sum(p["tokens"] for p in together),
        "speedup": metrics["one_by_one_s"] / metrics["batched_s"],
    }
    for name, value in metrics.items():
        print(f"{name:16} {value:.6g}")
    if args.json:
        args.json.write_text(json.dumps(metrics, indent=2) + "\n")


if __name__ == "__main__":
    main()
