"""Makes demo data of which a part is too easy and a part too hard: rewards of 0 or 1 with a tolerance per record.

    python scripts/demo/make_uneven.py --out runs/uneven                # 30% too easy, 30% too hard
    python scripts/demo/make_uneven.py --out runs/uneven --easy 0.1 --hard 0.5

The records of metadata/demo/trajectory for the task of scripts/lab/tasks/trajectory_within.py (train with `--task_dir
scripts/lab/tasks`): a path is right within `tolerance` of the true one, a share of the diagonal. Too easy: any readable
path is right; too hard: none is. Which records are which depends on --seed alone. Test records are all of the middle.
"""

import argparse
import json
import os
import random
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "metadata" / "demo" / "trajectory"
EASY, HARD = 2.0, 0.0001  # no path in the picture is farther away than its diagonal


def difficulties(count: int, easy: float, hard: float, seed: int) -> list[str]:
    """ "easy", "hard" or "middle" for each of `count` records, in exactly these shares up to rounding."""
    kinds = ["easy"] * round(easy * count) + ["hard"] * round(hard * count)
    kinds += ["middle"] * (count - len(kinds))
    random.Random(seed).shuffle(kinds)
    return kinds


def write_split(out: Path, split: str, easy: float, hard: float, middle: float, seed: int) -> None:
    """Writes the records of a split and its manifest; `middle`: tolerance of the records that are neither."""
    lines = (DATA / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    kinds = difficulties(len(lines), easy, hard, seed)
    tolerance = {"easy": EASY, "hard": HARD, "middle": middle}
    with (out / f"{split}.jsonl").open("w", encoding="utf-8") as file:
        for line, kind in zip(lines, kinds, strict=True):
            record = json.loads(line) | {"question_type": "trajectory-within", "tolerance": tolerance[kind]}
            file.write(json.dumps(record) + "\n")
    root = os.path.relpath(DATA, out)
    (out / f"{split}.yaml").write_text(
        f"datasets:\n- json_path: {split}.jsonl\n  data_root: {root}\n  data_modality: image\n", encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--easy", type=float, default=0.3, help="share of records that are too easy")
    parser.add_argument("--hard", type=float, default=0.3, help="share of records that are too hard")
    parser.add_argument("--tolerance", type=float, default=0.1, help="of the other records")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if min(args.easy, args.hard) < 0 or args.easy + args.hard > 1:
        parser.error(f"--easy {args.easy} and --hard {args.hard} must be shares that add up to at most 1")
    args.out.mkdir(parents=True, exist_ok=True)
    for split, shares in (("train", (args.easy, args.hard)), ("test", (0.0, 0.0))):
        write_split(args.out, split, *shares, args.tolerance, args.seed)
    print(f"wrote train and test records to {args.out}")


if __name__ == "__main__":
    main()
