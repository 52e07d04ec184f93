"""Does the layout of processes change the result of training? Three steps on fixed rollouts, with one process and two.

    python scripts/bench/layout_matrix.py [--full] [--json layout_matrix.json]

Layouts: one process; two with plain data parallelism, ZeRO-2, ZeRO-3 and FSDP2, over gloo on the CPU (where accelerate
shards only if the CPU is declared as an accelerator). Cases: packed and dense passes, losses averaged over rows and
over tokens, the same eight trees per optimiser step in one, two or four micro-batches, and thoughts of one group spread
over the processes. Each entry is the largest difference of a trained weight from training with one process, packed, in
one batch. AdamW has eps 1e-3: with 1e-8, rounding alone moves single weights by 1e-4, since g / (|g| + eps) is then the
sign of a gradient that is almost zero.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

use_checkout()

from layout_cases import CASES, LAYOUTS, Case
from two_processes import start

TARGET = 1e-5


def measure(layout: str, cases: list[Case], folder: Path) -> dict[str, dict]:
    """Case name -> the worker's results: weights before and after, and advantages."""
    import torch

    processes, _ = LAYOUTS[layout]
    out = folder / layout.replace(" ", "_")
    out.mkdir()
    names = [case.name for case in cases]
    worker = [str(Path(__file__).with_name("layout_worker.py")), layout, str(out), *names]
    start(worker, processes, timeout=1800)
    return {name: torch.load(out / f"{name}.pt") for name in names}


def gaps(results: dict[str, dict[str, dict]], cases: list[Case]) -> dict[str, dict[str, float]]:
    """Case -> layout -> largest difference of a weight from the first case of its kind on one process."""
    base = {}
    for case in cases:
        base.setdefault(case.kind, results["1 process"][case.name]["weights"])
    return {
        case.name: {layout: largest_gap(base[case.kind], results[layout][case.name]["weights"]) for layout in results}
        for case in cases
    }


def largest_gap(left: dict, right: dict) -> float:
    assert left.keys() == right.keys() and left
    return max((left[name] - right[name]).abs().max().item() for name in left)


def table(found: dict[str, dict[str, float]], results: dict[str, dict[str, dict]]) -> str:
    """One row per case, one column per layout; `moved` is the largest change of a weight in three steps."""
    lines = [f"{'':44}" + "".join(f"{layout:>12}" for layout in results) + f"{'moved':>10}"]
    for name, row in found.items():
        entries = "".join(f"{gap:12.1e}" for gap in row.values())
        case = results["1 process"][name]
        lines.append(f"{name:44}{entries}{largest_gap(case['start'], case['weights']):10.1e}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also full fine-tuning, not only LoRA")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS), help="which columns")
    parser.add_argument("--cases", nargs="+", default=[""], help="only cases whose name contains one of these")
    args = parser.parse_args()
    cases = [case for case in CASES if case.lora or args.full]
    cases = [case for case in cases if any(part in case.name for part in args.cases)]
    if not cases:
        parser.error(f"no case contains {' or '.join(args.cases)}: {', '.join(case.name for case in CASES)}")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for layout in dict.fromkeys(["1 process", *args.layouts]):
            results[layout] = measure(layout, cases, Path(folder))
            print(f"{layout}: done", file=sys.stderr, flush=True)
    found = gaps(results, cases)
    worst = max(gap for row in found.values() for gap in row.values())
    print(table(found, results))
    print(f"max_weight_gap {worst:.2e} (target {TARGET:g})")
    if args.json:
        metrics = {"max_weight_gap": worst, "target": TARGET, "gaps": found}
        args.json.write_text(json.dumps(metrics, indent=2) + "\n")
    raise SystemExit(worst > TARGET)


if __name__ == "__main__":
    main()
