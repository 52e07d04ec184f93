"""Bars of the measured speed-ups, each with its limit (the token ratio), from the benchmarks' JSON files.

    python scripts/bench/plot.py train_step.json rollout.json whole_step.json --plot speedups.png

Needs matplotlib (`pip install matplotlib`).
"""

import argparse
import json
from pathlib import Path


def draw(files: list[Path], out: Path) -> None:
    """One bar per file with the height of its key `speedup`, and a mark at `token_ratio`."""
    from matplotlib.figure import Figure

    results = {path.stem.replace("_", " "): json.loads(path.read_text()) for path in files}
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    bars = axes.bar(list(results), [one["speedup"] for one in results.values()], width=0.5, label="measured")
    axes.bar_label(bars, fmt="%.1fx")
    for at, one in enumerate(results.values()):
        label = "row tokens / unique tokens" if at == 0 else None
        axes.hlines(one["token_ratio"], at - 0.35, at + 0.35, colors="black", linestyles="dashed", label=label)
    axes.set_ylabel("times as fast as TRL")
    axes.margins(y=0.3)
    axes.legend(loc="upper right")
    figure.savefig(out, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="what --json of the benchmarks wrote")
    parser.add_argument("--plot", type=Path, required=True, help="the picture to write (.png, .svg, .pdf)")
    args = parser.parse_args()
    try:
        draw(args.files, args.plot)
    except ImportError:
        parser.error("the plot needs matplotlib, which is not installed: pip install matplotlib")


if __name__ == "__main__":
    main()
