"""Makes demo records for the OCR task: drawn signs and a question about one line.

    python scripts/demo/make_signs.py                    # writes metadata/demo/ocr, 24 train and 8 test records

Every sign depends only on (split, index). The letters are in Pillow's own font, so another version of Pillow may draw
them slightly differently; questions and answers stay the same.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SEEDS = {"train": 1, "test": 2}
WIDTH, HEIGHT, LINE, SIZE = 140, 84, 25, 16
GROUNDS = ((250, 245, 225), (225, 240, 250), (240, 225, 235))
INKS = ((20, 20, 20), (120, 10, 20), (10, 40, 110))
FIRST = ("Garden", "Corner", "Harbour", "Station", "Old Mill", "North")
SECOND = ("Books", "Bakery", "Toys", "Bikes", "Tools", "Shoes")


def make(split, index):
    """(picture, record without its image) number `index` of a split: three lines, and a question about one of them."""
    rng = np.random.default_rng([SEEDS[split], index])
    name = f"{rng.choice(FIRST)} {rng.choice(SECOND)}"
    hour, minute = int(rng.integers(7, 12)), int(rng.choice((0, 15, 30, 45)))
    price = f"{rng.integers(1, 10)}.{rng.integers(10, 100)}"
    lines = [name, f"Open {hour}:{minute:02d} AM", f"Tea ${price}"]
    asked = int(rng.integers(len(lines)))
    question, answer = (
        ("What is the shop called?", name),
        ("When does the shop open?", [f"{hour}:{minute:02d} AM", f"{hour}:{minute:02d}"]),
        ("What does the tea cost?", [f"${price}", price]),
    )[asked]
    order = [int(place) for place in rng.permutation(len(lines))]
    picture = draw([lines[place] for place in order], GROUNDS[rng.integers(3)], INKS[rng.integers(3)])
    return picture, {"question": question, "question_type": "ocr-vqa", "answer": answer}


def draw(lines, ground, ink):
    picture = Image.new("RGB", (WIDTH, HEIGHT), ground)
    canvas = ImageDraw.Draw(picture)
    canvas.rectangle((1, 1, WIDTH - 2, HEIGHT - 2), outline=ink)
    for number, line in enumerate(lines):
        canvas.text((7, 5 + number * LINE), line, fill=ink, font=ImageFont.load_default(SIZE))
    return picture


def write(folder, split, count):
    """Writes `count` records to folder/ocr/{split}.jsonl, their pictures, and the manifest folder/ocr_{split}.yaml."""
    root = folder / "ocr"
    (root / "images").mkdir(parents=True, exist_ok=True)
    with open(root / f"{split}.jsonl", "w", encoding="utf-8") as lines:
        for index in range(count):
            picture, record = make(split, index)
            name = f"ocr-{split}-{index:05d}"
            picture.save(root / "images" / f"{name}.png", optimize=True)
            lines.write(json.dumps({"id": name, "image": f"images/{name}.png"} | record) + "\n")
    manifest = f"datasets:\n- json_path: ocr/{split}.jsonl\n  data_root: ocr\n  data_modality: image\n"
    (folder / f"ocr_{split}.yaml").write_text(manifest + "  sampling_strategy: all\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default_out = Path(__file__).resolve().parents[2] / "metadata" / "demo"
    parser.add_argument("--out", type=Path, default=default_out, help="folder to write (default: metadata/demo)")
    parser.add_argument("--train", type=int, default=24, help="number of train records")
    parser.add_argument("--test", type=int, default=8, help="number of test records")
    args = parser.parse_args()
    write(args.out, "train", args.train)
    write(args.out, "test", args.test)
    print(f"wrote {args.train} train and {args.test} test records to {args.out / 'ocr'}")


if __name__ == "__main__":
    main()
