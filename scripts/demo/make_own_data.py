"""Makes the data that docs/tutorial.md starts from: pictures and a spreadsheet, as a user would bring them.

    python scripts/demo/make_own_data.py my_data            # my_data/labels.csv and 40 pictures in my_data/pictures

Each picture shows a coloured sign. Each row of the spreadsheet has a picture, a question, its label and a reason, which
becomes the thought of a warm start.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.demo.make_scenes import COLOURS

SEED = 11
SIDES = (84, 112, 140)
SHAPES = {"round": "ellipse", "square": "rectangle"}
COLUMNS = ("picture", "prompt", "label", "reason")


def make(index: int):
    """(picture, shape, colour) number `index`: one sign on a light or dark wall."""
    rng = np.random.default_rng([SEED, index])
    size = tuple(int(side) for side in rng.choice(SIDES, 2))
    wall = int(rng.integers(60, 230))
    picture = Image.new("RGB", size, (wall, wall, wall))
    width = int(rng.integers(36, 56))
    left, top = (int(rng.integers(4, side - width - 4)) for side in size)
    shape, colour = str(rng.choice(list(SHAPES))), str(rng.choice(list(COLOURS)))
    draw = getattr(ImageDraw.Draw(picture), SHAPES[shape])
    draw((left, top, left + width, top + width), fill=COLOURS[colour], outline=(20, 20, 20))
    return picture, shape, colour


def write(folder: Path, number: int) -> None:
    """Writes `number` pictures and labels.csv."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    with open(folder / "labels.csv", "w", encoding="utf-8", newline="") as lines:
        rows = csv.writer(lines)
        rows.writerow(COLUMNS)
        for index in range(number):
            picture, shape, colour = make(index)
            name = f"pictures/{index:03d}.png"
            picture.save(folder / name, optimize=True)
            rows.writerow((name, "Which colour is the sign?", colour, f"The {shape} sign is {colour}."))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to write")
    parser.add_argument("--number", type=int, default=40, help="number of pictures (default 40)")
    args = parser.parse_args()
    write(args.folder, args.number)
    print(f"wrote {args.number} pictures and {args.folder / 'labels.csv'}")


if __name__ == "__main__":
    main()
