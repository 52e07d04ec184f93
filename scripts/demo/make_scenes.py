"""Makes the demo data: tabletop scenes with a gripper, coloured objects, obstacles and the path to the named object.

    python scripts/demo/make_scenes.py                       # writes metadata/demo, 512 train and 128 test records
    python scripts/demo/make_scenes.py --train 2000 --out /some/folder

A scene depends only on (seed, index). Train, test and the warm start use different seeds. All coordinates are pixels of
the stored picture, origin at the top left.
"""

import argparse
import itertools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

TRAIN_SEED, TEST_SEED = 1, 2
COLOURS = {"red": (214, 30, 38), "green": (20, 150, 50), "blue": (30, 60, 205), "yellow": (245, 215, 20)}
SHAPES = ("cube", "ball", "cone")
EXACT_SIDES = (84, 112, 140)  # multiples of 28, which Qwen2.5-VL's processor does not resize
INEXACT_SIDES = (90, 96, 100, 108, 118, 122, 124, 132, 136)  # resized by at most a tenth
INEXACT_SHARE = 0.2
MARGIN, GRIPPER_RADIUS, OBJECT_RADIUS = 8, 5, 6
CLEARANCE = 5.0  # pixels between a block's edge and a careful path
WAYPOINT_GAP = 26.0  # pixels of path per way-point
OUTLINE, BLOCK_FILL = (25, 25, 25), (95, 95, 100)


@dataclass
class Marker:
    """A round region of the picture: x, y and radius in pixels."""

    x: int
    y: int
    radius: int

    @property
    def xy(self):
        return np.array([self.x, self.y], dtype=float)


@dataclass
class Scene:
    """One tabletop. `objects` are (marker, colour, shape), the first the target; `path` is N x 2, gripper to target."""

    width: int
    height: int
    gripper: Marker
    objects: list
    blocks: list = field(default_factory=list)
    path: np.ndarray | None = None
    passes: list = field(default_factory=list)  # (block index, side) in the order along the path
    light: tuple = (0.0, 0.0, 0.0)

    @property
    def target_name(self):
        return f"{self.objects[0][1]} {self.objects[0][2]}"

    @property
    def question(self):
        return f"Move the gripper to the {self.target_name}."

    @property
    def processed_size(self):
        """(width, height) after Qwen2.5-VL's processor: each side the nearest multiple of 28."""
        return round(self.width / 28) * 28, round(self.height / 28) * 28

    @property
    def scale(self):
        """Processed pixels per original pixel, along x and y."""
        return np.array(self.processed_size) / (self.width, self.height)


def make_scene(seed, index):
    """The scene number `index` of the stream `seed`; redraws until the path is clear and everything fits."""
    rng = np.random.default_rng([seed, index])
    while True:
        scene = draw_layout(rng)
        if scene is not None:
            return scene


def draw_layout(rng):
    """One random scene, or None if it has no room or no clear path."""
    sides = INEXACT_SIDES if rng.random() < INEXACT_SHARE else EXACT_SIDES
    width, height = (int(side) for side in rng.choice(sides, 2))
    gripper = place(rng, width, height, GRIPPER_RADIUS)
    target = place(rng, width, height, OBJECT_RADIUS)
    if np.linalg.norm(gripper.xy - target.xy) < 42:
        return None
    taken, blocks = [gripper, target], []
    for _ in range(int(rng.choice(3, p=[0.3, 0.5, 0.2]))):
        radius = int(rng.integers(8, 11))
        block = between(rng, gripper, target, radius) if rng.random() < 0.75 else place(rng, width, height, radius)
        if not is_free(block, taken, gap=5) or not inside(block, width, height):
            return None
        blocks.append(block)
        taken.append(block)
    path, passes = plan_path(gripper.xy, target.xy, blocks, width, height)
    if path is None:
        return None
    objects = [target]
    for _ in range(int(rng.integers(0, 3))):
        distractor = place(rng, width, height, OBJECT_RADIUS)
        if is_free(distractor, taken, gap=4):
            objects.append(distractor)
            taken.append(distractor)
    colours = rng.permutation(list(COLOURS))
    named = [(marker, str(colour), str(rng.choice(SHAPES))) for marker, colour in zip(objects, colours, strict=False)]
    light = tuple(float(value) for value in rng.uniform(-5, 5, 3))
    return Scene(width, height, gripper, named, blocks, path, passes, light)


def place(rng, width, height, radius):
    return Marker(int(rng.integers(MARGIN, width - MARGIN)), int(rng.integers(MARGIN, height - MARGIN)), radius)


def between(rng, gripper, target, radius):
    """A block near the straight line, so that the path must go around it."""
    along = rng.uniform(0.4, 0.6)
    x, y = gripper.xy + along * (target.xy - gripper.xy) + rng.normal(0, 5, 2)
    return Marker(round(x), round(y), radius)


def inside(marker, width, height):
    return MARGIN <= marker.x < width - MARGIN and MARGIN <= marker.y < height - MARGIN


def is_free(marker, taken, gap):
    return all(np.linalg.norm(marker.xy - other.xy) >= marker.radius + other.radius + gap for other in taken)


def plan_path(start, end, blocks, width, height):
    """Way-points from start to end around the blocks, and [(block index, side)]; (None, []) if no clear path is found.

    A block closer to the straight line than radius + CLEARANCE is passed at that distance, on the shorter side that
    lies inside the picture. The line through these points is resampled to 3 to 6 evenly spaced way-points.
    """
    direction = (end - start) / np.linalg.norm(end - start)
    normal = np.array([-direction[1], direction[0]])
    corners, passes = [], []
    for index in sorted(range(len(blocks)), key=lambda i: (blocks[i].xy - start) @ direction):
        block = blocks[index]
        if distance_to_line(block.xy, start, end) >= block.radius + CLEARANCE:
            continue
        side = -1.0 if (block.xy - start) @ normal > 0 else 1.0
        for sign in (side, -side):
            corner = block.xy + sign * (block.radius + CLEARANCE + 3) * normal
            if 4 <= corner[0] <= width - 4 and 4 <= corner[1] <= height - 4:
                break
        else:
            return None, []
        corners.append(corner)
        passes.append((index, side_name(sign * normal)))
    path = cut_evenly(np.array([start, *corners, end]))
    if not clears(path, blocks):
        return None, []
    return path, passes


def side_name(offset):
    if abs(offset[0]) > abs(offset[1]):
        return "right" if offset[0] > 0 else "left"
    return "below" if offset[1] > 0 else "above"


def cut_evenly(line):
    """3 to 6 evenly spaced points along a line of corner points (N x 2), rounded to a tenth of a pixel."""
    lengths = np.linalg.norm(np.diff(line, axis=0), axis=1)
    reached = np.concatenate([[0.0], np.cumsum(lengths)])
    count = int(np.clip(round(reached[-1] / WAYPOINT_GAP) + 1, 3, 6))
    at = np.linspace(0.0, reached[-1], count)
    return np.stack([np.interp(at, reached, line[:, axis]) for axis in (0, 1)], axis=1).round(1)


def distance_to_line(point, start, end):
    """Distance in pixels from a point to the segment start-end."""
    span = end - start
    along = np.clip((point - start) @ span / (span @ span), 0.0, 1.0)
    return float(np.linalg.norm(point - (start + along * span)))


def clears(path, blocks):
    """True if no segment of the path touches a block (2 pixels of slack)."""
    pairs = list(itertools.pairwise(path))
    return all(distance_to_line(block.xy, a, b) >= block.radius + 2 for block in blocks for a, b in pairs)


def draw(scene):
    """The scene as an RGB picture of scene.width x scene.height."""
    picture = Image.fromarray(ground(scene.width, scene.height, scene.light))
    canvas = ImageDraw.Draw(picture)
    for block in scene.blocks:
        canvas.rectangle(box(block, 0.8), fill=BLOCK_FILL, outline=OUTLINE)
    for marker, colour, shape in scene.objects:
        if shape == "ball":
            canvas.ellipse(box(marker), fill=COLOURS[colour], outline=OUTLINE)
        elif shape == "cube":
            canvas.rectangle(box(marker, 0.85), fill=COLOURS[colour], outline=OUTLINE)
        else:
            left, top, right, bottom = box(marker)
            canvas.polygon([(left, bottom), (marker.x, top), (right, bottom)], fill=COLOURS[colour], outline=OUTLINE)
    x, y, r = scene.gripper.x, scene.gripper.y, scene.gripper.radius
    canvas.ellipse(box(scene.gripper), fill=(250, 250, 250), outline=(0, 0, 0))
    canvas.line((x - r, y, x + r, y), fill=(0, 0, 0))
    canvas.line((x, y - r, x, y + r), fill=(0, 0, 0))
    return picture


def ground(width, height, light):
    """A lit table (H x W x 3, uint8): its colour changes smoothly along x and y, and so encodes the position."""
    x, y = np.meshgrid(np.arange(width) / 140.0, np.arange(height) / 140.0)
    colour = np.stack([110 + 100 * x, 205 - 100 * y, 190 - 50 * x - 60 * y], axis=-1) + np.array(light)
    return (colour // 3 * 3).astype(np.uint8)  # steps of 3 keep the files small


def box(marker, share=1.0):
    half = math.floor(marker.radius * share)
    return marker.x - half, marker.y - half, marker.x + half, marker.y + half


def to_record(scene, name, image):
    """The scene as a training record; `image` is the picture's path relative to the data root."""
    return {
        "id": name,
        "image": image,
        "question": scene.question,
        "question_type": "trajectory-sharerobot",
        "answer": scene.path.tolist(),
        "obstacles": [{"x": b.x, "y": b.y, "radius": b.radius} for b in scene.blocks],
        "meta_data": {"original_width": scene.width, "original_height": scene.height},
    }


def write_split(folder, split, seed, count):
    """Writes `count` scenes to folder/trajectory/{split}.jsonl, their pictures, and the manifest of the split."""
    root = folder / "trajectory"
    (root / "images").mkdir(parents=True, exist_ok=True)
    with open(root / f"{split}.jsonl", "w", encoding="utf-8") as lines:
        for index in range(count):
            scene = make_scene(seed, index)
            name = f"demo-{split}-{index:05d}"
            draw(scene).save(root / "images" / f"{name}.png", optimize=True)
            lines.write(json.dumps(to_record(scene, name, f"images/{name}.png")) + "\n")
    (folder / f"trajectory_{split}.yaml").write_text(
        "datasets:\n"
        f"- json_path: trajectory/{split}.jsonl\n"
        "  data_root: trajectory\n"
        "  data_modality: image\n"
        "  sampling_strategy: all\n",
        encoding="utf-8",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default_out = Path(__file__).resolve().parents[2] / "metadata" / "demo"
    parser.add_argument("--out", type=Path, default=default_out, help="folder to write (default: metadata/demo)")
    parser.add_argument("--train", type=int, default=512, help="number of train records")
    parser.add_argument("--test", type=int, default=128, help="number of test records")
    args = parser.parse_args()
    write_split(args.out, "train", TRAIN_SEED, args.train)
    write_split(args.out, "test", TEST_SEED, args.test)
    print(f"wrote {args.train} train and {args.test} test records to {args.out}")


if __name__ == "__main__":
    main()
