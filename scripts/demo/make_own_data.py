"""Makes the data that docs/tutorial.md starts from: pictures and a spreadsheet, as a user would bring them.

    python scripts/demo/make_own_data.py my_data            # my_data/labels.csv and 40 pictures in my_data/pictures

Each row of the spreadsheet has a picture, a question, its label and a reason, which becomes a thought.
"""

import argparse
import csv
import sys
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.demo.make_scenes import draw, make_scene

SEED = 11  # of scenes that no other demo shows
COLUMNS = ("picture", "prompt", "label", "reason")


def write(folder: Path, number: int) -> None:
    """Writes `number` scenes, in which one object alone has its shape, and a question about its colour."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    scenes = (make_scene(SEED, index) for index in count())
    with open(folder / "labels.csv", "w", encoding="utf-8", newline="") as lines:
        rows = csv.writer(lines)
        rows.writerow(COLUMNS)
        for place in range(number):
            scene, colour, shape = next(found for scene in scenes if (found := _with_one_of_its_shape(scene)))
            name = f"pictures/{place:03d}.png"
            draw(scene).save(folder / name, optimize=True)
            rows.writerow((name, f"Which colour is the {shape}?", colour, f"The {shape} is {colour}."))


def _with_one_of_its_shape(scene):
    """(scene, colour, shape) of its target, or None if another object has the same shape."""
    (_, colour, shape), *others = scene.objects
    return None if any(other == shape for *_, other in others) else (scene, colour, shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to write")
    parser.add_argument("--number", type=int, default=40, help="number of pictures (default 40)")
    args = parser.parse_args()
    write(args.folder, args.number)
    print(f"wrote {args.number} pictures and {args.folder / 'labels.csv'}")


if __name__ == "__main__":
    main()
