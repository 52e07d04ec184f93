"""Makes gridworld records: FrozenLake boards with a path to the goal, and a picture of the start.

    pip install -e '.[gridworld]'
    python scripts/data/make_gridworld.py --output_dir runs/gridworld --count 512

Boards are random, all different, and solvable in --min_moves to --max_moves moves. With --part train and --part test,
two sets share no board, whatever their seeds: a fifth of all boards, chosen by a checksum, are for tests.

Written to --output_dir:
gridworld.yaml (manifest), gridworld.jsonl, images/. Exit status 2 if a package is missing or an argument is invalid.
"""

import argparse
import json
import random
import sys
import zlib
from collections import deque
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

use_checkout()

from task.errors import UserError
from task.gridworld import draw
from task.runners.optional import need

MANIFEST = "datasets:\n- json_path: gridworld.jsonl\n  data_modality: image\n  sampling_strategy: all\n"
QUESTION = "The picture shows a frozen lake from above."
PARTS = ("all", "train", "test")
TRIES = 200  # boards sampled per new one with a short enough path


def way(rows: list[str]) -> int | None:
    """The minimum number of moves from S to G, None if there is no path.

    >>> way(["SF", "HG"]), way(["SH", "HG"])
    (2, None)
    """
    start = next((y, row.index("S")) for y, row in enumerate(rows) if "S" in row)
    queue, seen = deque([(start, 0)]), {start}
    while queue:
        (y, x), moves = queue.popleft()
        if rows[y][x] == "G":
            return moves
        for place in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
            inside = 0 <= place[0] < len(rows) and 0 <= place[1] < len(rows[0])
            if inside and place not in seen and rows[place[0]][place[1]] != "H":
                seen.add(place)
                queue.append((place, moves + 1))
    return None


def in_part(rows: list[str], part: str) -> bool:
    """Whether a board belongs to one of `PARTS`: every board to "all" and either to "train" or to "test"."""
    return part == "all" or (zlib.crc32("/".join(rows).encode()) % 5 == 0) == (part == "test")


def boards(
    count: int, size: int, holes: float, max_moves: int, seed: int, part: str = "all", min_moves: int = 1
) -> list[list[str]]:
    """`count` different boards of a part, with a shortest path of min_moves to max_moves.

    Raises UserError if that many were not found.
    """
    rng, found = random.Random(seed), {}
    for _ in range(count * TRIES):
        if len(found) == count:
            break
        cells = ["H" if rng.random() < holes else "F" for _ in range(size * size)]
        start, goal = rng.sample(range(size * size), 2)
        cells[start], cells[goal] = "S", "G"
        rows = ["".join(cells[y * size : (y + 1) * size]) for y in range(size)]
        moves = way(rows)
        if moves is not None and min_moves <= moves <= max_moves and in_part(rows, part):
            found.setdefault(tuple(rows), rows)
    if len(found) < count:
        raise UserError(
            f"only {len(found)} different boards of size {size} with a path of {min_moves} to {max_moves} moves were "
            f"found, not {count}: ask for fewer, or for larger boards, fewer holes or more moves."
        )
    return list(found.values())


def write_records(folder: Path, found: list[list[str]], name: str) -> None:
    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for number, rows in enumerate(found):
        file = f"images/{name}-{number:05d}.png"
        start = next((y, row.index("S")) for y, row in enumerate(rows) if "S" in row)
        draw(rows, start).save(folder / file)
        record = {
            "id": f"{name}-{number:05d}",
            "image": file,
            "question": QUESTION,
            "question_type": "gridworld",
            "answer": rows,
            "shortest": way(rows),
        }
        lines.append(json.dumps(record) + "\n")
    (folder / "gridworld.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "gridworld.yaml").write_text(MANIFEST, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="folder to write")
    parser.add_argument("--count", type=int, default=512, help="records (%(default)s)")
    parser.add_argument("--size", type=int, default=4, help="cells per side (%(default)s)")
    parser.add_argument("--holes", type=float, default=0.2, help="share of cells with a hole (%(default)s)")
    parser.add_argument("--min_moves", type=int, default=1, help="minimum length of the shortest path (%(default)s)")
    parser.add_argument("--max_moves", type=int, default=5, help="maximum length of the shortest path (%(default)s)")
    parser.add_argument("--part", choices=PARTS, default="all", help="boards of one part only (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the boards (%(default)s)")
    args = parser.parse_args(argv)
    try:
        need("gymnasium", "gridworld")
        if args.count < 1 or args.size < 2 or not 1 <= args.min_moves <= args.max_moves or not 0 <= args.holes < 1:
            raise UserError(
                "--count and --min_moves must be at least 1, --max_moves at least --min_moves, --size at least 2, "
                "--holes at least 0 and below 1."
            )
        found = boards(args.count, args.size, args.holes, args.max_moves, args.seed, args.part, args.min_moves)
        write_records(args.output_dir, found, f"lake-{args.seed}")
    except (UserError, OSError) as error:
        print(f"make_gridworld.py: {error}", file=sys.stderr)
        return 2
    print(f"wrote {len(found)} records to {args.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
