"""Shows a training curve as text: `python scripts/eval/curve.py RUN [--key reward] [--rows 12]`.

RUN is the output folder of a training run, which may still be training. Logged steps are divided into rows of equal
count; each row shows its steps, the mean of the key over them, and a bar scaled from the lowest mean to the highest.
Exit status 2 for a user's mistake.
"""

import argparse
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()
sys.path.insert(0, str(ROOT / "scripts"))

from report.history import read_history, series

from task.errors import UserError

WIDTH = 40  # characters of the longest bar


def curve(steps: list[float], values: list[float], rows: int) -> list[tuple[int, int, float]]:
    """Rows (first step, last step, mean of the values) of as equal numbers of steps as possible.

    >>> curve([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], 2)
    [(1, 2, 0.15000000000000002), (3, 4, 0.35)]
    """
    rows = min(rows, len(steps))
    cuts = [round(i * len(steps) / rows) for i in range(rows + 1)]
    return [(int(steps[a]), int(steps[b - 1]), sum(values[a:b]) / (b - a)) for a, b in itertools.pairwise(cuts)]


def draw(rows: list[tuple[int, int, float]]) -> str:
    """The rows as lines of text with bars."""
    low, high = min(mean for *_, mean in rows), max(mean for *_, mean in rows)
    lines = []
    for first, last, mean in rows:
        share = (mean - low) / (high - low) if high > low else 1.0
        lines.append(f"{first:>6}-{last:<6} {mean:>9.4f}  {'#' * max(1, round(share * WIDTH))}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="output folder of a training run")
    parser.add_argument("--key", default="reward", help="logged value to show (default: reward)")
    parser.add_argument("--rows", type=int, default=12, help="rows of the curve (default 12)")
    args = parser.parse_args(argv)
    try:
        if args.rows < 1:
            raise UserError(f"--rows {args.rows}: it must be at least 1.")
        if not args.run.is_dir():
            raise UserError(f"{args.run} is not a folder: name the output_dir of a training run.")
        logged = series(read_history(args.run)[0])
        if args.key not in logged:
            names = ", ".join(sorted(logged)) or "no values at all"
            raise UserError(f"{args.run} has no logged {args.key!r}: logged are {names}.")
    except UserError as error:
        print(f"curve.py: {error}", file=sys.stderr)
        return 2
    print(f"{'steps':>13} {args.key:>9}")
    print(draw(curve(*logged[args.key], args.rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
