"""Makes demo records of three families from drawn scenes: areas to touch, objects to detect, objects that meet a need.

    python scripts/demo/make_object_scenes.py            # writes metadata/demo/{affordance,detection,demand}

Every scene depends only on (family, split, index). Coordinates are pixels of the stored picture. The pictures are
drawn, so the boxes are exact; they show that a task can be trained and scored, not how hard it is.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDES = (84, 112, 140)  # multiples of 28, which Qwen2.5-VL's processor does not resize
SEEDS = {"train": 1, "test": 2}
INK = (30, 30, 30)
COLOURS = {"red": (214, 30, 38), "green": (20, 150, 50), "blue": (30, 60, 205), "yellow": (245, 215, 20)}
TRIES = 60  # positions tried per object before a picture counts as full

# kind -> (an action, the part it touches as fractions of the box, a need that the object meets)
KINDS = {
    "cup": ("Pick up the {}.", (0.75, 0.25, 1.0, 0.75), "I am thirsty."),
    "lamp": ("Switch on the {}.", (0.3, 0.8, 0.7, 1.0), "It is too dark to read."),
    "drawer": ("Open the {}.", (0.35, 0.4, 0.65, 0.6), "I want to put my socks away."),
    "ball": ("Roll the {} away.", (0.0, 0.3, 0.3, 0.7), "I would like to play outside."),
    "umbrella": ("Lift the {}.", (0.42, 0.5, 0.58, 1.0), "It is raining and I must go out."),
}


def objects_of(rng, width, height, kinds):
    """[(kind, colour name, box)] of the given kinds that fit without touching each other."""
    placed = []
    for kind in kinds:
        for _ in range(TRIES):
            side = int(rng.integers(22, 35))
            x, y = int(rng.integers(2, width - side - 2)), int(rng.integers(2, height - side - 2))
            box = [x, y, x + side, y + side]
            if all(apart(box, other) for _, _, other in placed):
                placed.append((kind, str(rng.choice(list(COLOURS))), box))
                break
    return placed


def apart(a, b, gap=3):
    return a[2] + gap <= b[0] or b[2] + gap <= a[0] or a[3] + gap <= b[1] or b[3] + gap <= a[1]


def part(kind, box):
    """The box of the part of an object that its action touches."""
    x, y, side = box[0], box[1], box[2] - box[0]
    left, top, right, bottom = KINDS[kind][1]
    return [x + left * side, y + top * side, x + right * side, y + bottom * side]


def draw(width, height, objects, tone):
    picture = Image.new("RGB", (width, height), (235 - tone, 230 - tone, 215 - tone))
    canvas = ImageDraw.Draw(picture)
    for kind, colour, box in objects:
        DRAWINGS[kind](canvas, box, COLOURS[colour], part(kind, box))
    return picture


def draw_cup(canvas, box, fill, handle):
    canvas.rectangle((box[0], box[1], handle[0], box[3] - 1), fill=fill, outline=INK)
    canvas.rectangle((handle[0], handle[1], handle[2] - 1, handle[3]), outline=INK, width=2)


def draw_lamp(canvas, box, fill, base):
    middle = (box[0] + box[2]) / 2
    canvas.line((middle, box[1], middle, base[1]), fill=INK, width=2)
    half = box[1] + (box[3] - box[1]) * 0.5
    canvas.polygon([(box[0], half), (middle, box[1]), (box[2] - 1, half)], fill=fill, outline=INK)
    canvas.rectangle((base[0], base[1], base[2], base[3] - 1), fill=INK)


def draw_drawer(canvas, box, fill, knob):
    canvas.rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=fill, outline=INK)
    canvas.rectangle(knob, fill=(250, 250, 250), outline=INK)


def draw_ball(canvas, box, fill, _):
    canvas.ellipse((box[0], box[1], box[2] - 1, box[3] - 1), fill=fill, outline=INK)


def draw_umbrella(canvas, box, fill, stick):
    canvas.rectangle((stick[0], stick[1], stick[2], stick[3] - 1), fill=INK)
    lower = 2 * stick[1] - box[1]  # a half disc
    canvas.pieslice((box[0], box[1], box[2] - 1, lower), 180, 360, fill=fill, outline=INK)


DRAWINGS = {
    "cup": draw_cup,
    "lamp": draw_lamp,
    "drawer": draw_drawer,
    "ball": draw_ball,
    "umbrella": draw_umbrella,
}


def affordance(rng, objects):
    kind, _, box = objects[0]
    x1, y1, x2, y2 = part(kind, box)
    answer = {"x": round(x1, 2), "y": round(y1, 2), "width": round(x2 - x1, 2), "height": round(y2 - y1, 2)}
    return {"question": KINDS[kind][0].format(kind), "question_type": "affordance-sharerobot", "answer": answer}


def detection(rng, objects):
    """One in three asks for a single object, without a label; the others for every object of two kinds, or of none."""
    record = {"question_type": "object-detection"}
    if rng.random() < 1 / 3:
        kind, colour, box = objects[0]
        return record | {"question": f"Find the {colour} {kind}.", "answer": box}
    wanted = [str(kind) for kind in rng.permutation(list(KINDS))[:2]]
    found = [{"bbox_2d": box, "label": kind} for kind, _, box in objects if kind in wanted]
    return record | {"question": f"Find every {wanted[0]} and every {wanted[1]}.", "answer": found}


def demand(rng, objects):
    """One in four is a choice in words, without a picture."""
    kind, _, box = objects[0]
    need, record = KINDS[kind][2], {"question_type": "demand-prediction"}
    if rng.random() < 0.25:
        choices = [str(one) for one in rng.permutation(list(KINDS))]
        listed = " ".join(f"{letter}. {choice}" for letter, choice in zip("ABCDE", choices, strict=True))
        letter = "ABCDE"[choices.index(kind)]
        return record | {"question": f"{need} {listed}", "choices": choices, "answer": letter, "image": None}
    return record | {"question": need, "answer": [{"bbox_2d": box, "label": kind}]}


FAMILIES = {"affordance": affordance, "detection": detection, "demand": demand}


def make(family, split, index):
    """(picture, record without its image) number `index` of a family's split."""
    rng = np.random.default_rng([SEEDS[split], list(FAMILIES).index(family), index])
    width, height = (int(side) for side in rng.choice(SIDES, 2))
    kinds = [str(kind) for kind in rng.permutation(list(KINDS))[: rng.integers(2, 5)]]
    if family == "detection" and rng.random() < 0.5:
        kinds.append(kinds[-1])  # the same kind twice; the first stays alone, so that its colour and kind name it
    objects = objects_of(rng, width, height, kinds)
    picture = draw(width, height, objects, int(rng.integers(0, 20)))
    return picture, FAMILIES[family](rng, objects)


def write(folder, family, split, count):
    """Writes `count` records to folder/FAMILY/{split}.jsonl, their pictures, and folder/FAMILY_{split}.yaml."""
    root = folder / family
    (root / "images").mkdir(parents=True, exist_ok=True)
    with open(root / f"{split}.jsonl", "w", encoding="utf-8") as lines:
        for index in range(count):
            picture, record = make(family, split, index)
            name = f"{family}-{split}-{index:05d}"
            if "image" in record:
                del record["image"]
            else:
                picture.save(root / "images" / f"{name}.png", optimize=True)
                record["image"] = f"images/{name}.png"
            lines.write(json.dumps({"id": name} | record) + "\n")
    manifest = f"datasets:\n- json_path: {family}/{split}.jsonl\n  data_root: {family}\n  sampling_strategy: all\n"
    (folder / f"{family}_{split}.yaml").write_text(manifest, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default_out = Path(__file__).resolve().parents[2] / "metadata" / "demo"
    parser.add_argument("--out", type=Path, default=default_out, help="folder to write (default: metadata/demo)")
    parser.add_argument("--train", type=int, default=24, help="number of train records per family")
    parser.add_argument("--test", type=int, default=8, help="number of test records per family")
    args = parser.parse_args()
    for family in FAMILIES:
        write(args.out, family, "train", args.train)
        write(args.out, family, "test", args.test)
    print(f"wrote {args.train} train and {args.test} test records of {', '.join(FAMILIES)} to {args.out}")


if __name__ == "__main__":
    main()
