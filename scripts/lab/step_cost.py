"""The cost of an optimiser step of T4A1, T4A4 and T16A1 at equal lengths: seconds, sampled tokens, unique tokens.

    python scripts/lab/step_cost.py --rounds 3 --json step_cost.json    # --preset gpu: the sizes of the 3B recipe

One prompt with one picture per step, thoughts and answers of fixed lengths (`scripts/bench/bench_model.py`), the vision
tower frozen; all shapes use packed passes and take turns in one process. Seconds are medians, CPU seconds on a CPU.
`unique_tokens` are those that a packed pass computes, `row_tokens` those of one row per leaf.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()
sys.path.insert(0, str(ROOT / "scripts" / "bench"))

from bench_cli import benchmark_parser, run
from bench_model import Clock, build_model, build_processor, write_to_the_limit
from cases import question_of_length, write_pictures
from whole_step import PROMPTS, our_trainer

from model.qwen_module import Qwen2_5VLModule

SHAPES = {"T4A1": (4, 1), "T4A4": (4, 4), "T16A1": (16, 1)}


def measure(preset: dict, sizes: dict, args, folder: Path) -> dict:
    processor = build_processor()
    images = write_pictures(folder, sizes["grid"], PROMPTS)
    trainers, rows = {}, None
    for name, (thoughts, answers) in SHAPES.items():
        model = build_model(preset, processor)
        module = Qwen2_5VLModule(model.config)
        module.processor = processor
        write_to_the_limit(model, processor)
        module.freeze(model, freeze_vision=True)
        if rows is None:
            question = question_of_length(module, images[0], sizes["text_tokens"] + 2)
            rows = [{"question": question, "image": image} for image in images]
        shape = sizes | {"think_num": thoughts, "answer_num": answers}
        trainers[name] = our_trainer(model, processor, rows, shape, preset, folder / name)
        trainers[name].forward.checked = True
    clock = Clock(preset["device"])
    for _ in range(args.rounds):
        for name, trainer in trainers.items():
            clock.run(name, trainer.train)
    found, seconds = {}, clock.medians()
    for name, trainer in trainers.items():
        rollout = trainer.generation.rollout
        prompt, sampled = len(rollout.prompts[0].ids), rollout.trees[0].unique_tokens()
        whole = sum(prompt + len(rollout.completion(row)) for row in range(len(rollout.row_tree)))
        values = {"seconds": seconds[name], "unique_tokens": prompt + sampled, "row_tokens": whole}
        found |= {f"{name}_{key}": value for key, value in values.items()}
    for other in ("T4A1", "T16A1"):
        found[f"T4A4_over_{other}"] = seconds["T4A4"] / seconds[other]
        found[f"T4A4_over_{other}_unique_tokens"] = found["T4A4_unique_tokens"] / found[f"{other}_unique_tokens"]
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run(benchmark_parser(__doc__, rounds=3), lambda *given: measure(*given, Path(folder)))
