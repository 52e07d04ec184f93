"""Shows a training curve as text: `python scripts/eval/curve.py RUN [--key reward] [--rows 12]`.

RUN is a training output folder (its trainer_state.json, or its newest checkpoint's) or that file itself. Logged steps
are cut into rows of equal count; a row shows its steps, the mean of the key over them, and a bar that grows from the
lowest row mean to the highest. Exit status 2 for a user's mistake.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

WIDTH = 40  # characters of the longest bar


def read_history(path: Path) -> list[dict]:
    """The log history (one dict a logged step, with its "step") of a run folder or trainer_state.json.

    Raises:
        ValueError: there is no trainer_state.json to read.
    """
    if path.is_dir():
        checkpoints = sorted(path.glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]), reverse=True)
        states = [folder / "trainer_state.json" for folder in (path, *checkpoints)]
        path = next((state for state in states if state.is_file()), path / "trainer_state.json")
    if not path.is_file():
        raise ValueError(f"{path} does not exist: name the output_dir of a training run that has logged and saved.")
    return json.loads(path.read_text(encoding="utf-8"))["log_history"]


def curve(history: list[dict], key: str, rows: int) -> list[tuple[int, int, float]]:
    """Rows (first step, last step, mean of `key`), as equal in count of logged steps as can be.

    >>> curve([{"step": s, "reward": s / 10} for s in (1, 2, 3, 4)], "reward", 2)
    [(1, 2, 0.15000000000000002), (3, 4, 0.35)]

    Raises:
        ValueError: no logged step has the key.
    """
    points = [(entry["step"], float(entry[key])) for entry in history if key in entry]
    if not points:
        keys = sorted({name for entry in history for name in entry})
        raise ValueError(f"no logged step has {key!r}: logged are {', '.join(keys) or 'no values at all'}.")
    rows = min(rows, len(points))
    cuts = [round(i * len(points) / rows) for i in range(rows + 1)]
    parts = [points[a:b] for a, b in itertools.pairwise(cuts)]
    return [(part[0][0], part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


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
    parser.add_argument("run", type=Path, metavar="RUN", help="output folder of a run, or a trainer_state.json")
    parser.add_argument("--key", default="reward", help="logged value to show (default: reward)")
    parser.add_argument("--rows", type=int, default=12, help="rows of the curve (default 12)")
    args = parser.parse_args(argv)
    try:
        if args.rows < 1:
            raise ValueError(f"--rows {args.rows}: it must be at least 1.")
        rows = curve(read_history(args.run), args.key, args.rows)
    except ValueError as error:
        print(f"curve.py: {error}", file=sys.stderr)
        return 2
    print(f"{'steps':>13} {args.key:>9}")
    print(draw(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
