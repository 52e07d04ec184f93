"""Makes trajectory records on real photographs in many file forms: a test of data loading, not a benchmark.

    pip install -e '.[photos]'
    python scripts/data/make_photo_records.py --output_dir runs/photos

The photographs come with scikit-image and scikit-learn. The targets of paths are detected in the pictures: coins by
watershed, a flower by its colour, galaxies and the eye's blind spot by brightness, a face by a cascade detector. Forms:
JPEG and PNG in several sizes, a JPEG rotated by its EXIF tag, a PNG with a transparent background, a 16-bit PNG.
Answers are in pixels of the picture as it is displayed.

Written to --output_dir: photos.yaml (manifest), photos.jsonl, images/. Exit status 2 if a package is missing.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

TURNED = 6  # EXIF orientation: show the stored pixels turned by 90 degrees clockwise
ORIENTATION_TAG = 0x0112
ROWS = ("top", "second", "third", "bottom")


class MissingPackage(Exception):
    """A package is not installed; the message names its extra."""


def save_jpeg(picture: Image.Image, subject: np.ndarray, file: Path) -> None:
    picture.save(file, quality=95)


def save_turned(picture: Image.Image, subject: np.ndarray, file: Path) -> None:
    """Stores the picture rotated, with the EXIF tag that makes viewers show it upright."""
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = TURNED
    picture.transpose(Image.Transpose.ROTATE_90).save(file, quality=95, exif=exif)


def save_alpha(picture: Image.Image, subject: np.ndarray, file: Path) -> None:
    """Stores the picture transparent outside the subject, with black pixels there."""
    mask = Image.fromarray(subject).resize(picture.size)
    coloured = Image.composite(picture.convert("RGB"), Image.new("RGB", picture.size), mask)
    coloured.putalpha(mask.convert("L"))
    coloured.save(file)


def save_16_bit(picture: Image.Image, subject: np.ndarray, file: Path) -> None:
    grey = np.asarray(picture.convert("L"), dtype=np.uint16)
    Image.fromarray(grey * 257).save(file)  # 255 becomes 65535


# form -> (file ending, writer, size relative to the photograph)
FORMS: dict[str, tuple[str, Callable, float]] = {
    "jpeg": ("jpg", save_jpeg, 1.0),
    "turned": ("jpg", save_turned, 0.75),
    "alpha": ("png", save_alpha, 1.25),
    "16bit": ("png", save_16_bit, 0.5),
}


def coins() -> tuple[np.ndarray, np.ndarray, list[tuple[str, list]]]:
    """(photograph H x W, mask of the coins, [(instruction, path)] for its four rows of six coins)."""
    from scipy.ndimage import binary_fill_holes
    from skimage.data import coins
    from skimage.filters import sobel
    from skimage.measure import label
    from skimage.segmentation import watershed

    photo = coins()
    seeds = np.select([photo < 30, photo > 150], [1, 2], 0)  # certainly background, certainly coin
    mask = binary_fill_holes(watershed(sobel(photo), seeds) == 2)
    by_height = sorted(centres(label(mask), smallest=500), key=lambda centre: centre[1])
    rows = [sorted(by_height[start : start + 6]) for start in range(0, 24, 6)]
    assert len(by_height) == 24, f"found {len(by_height)} of 24 coins"
    tasks = [
        (f"Pass over the {row} row of coins from left to right.", path) for row, path in zip(ROWS, rows, strict=True)
    ]
    return photo, mask, tasks


def flower() -> tuple[np.ndarray, str, list]:
    from skimage.color import rgb2hsv
    from skimage.measure import label
    from sklearn.datasets import load_sample_image

    photo = load_sample_image("flower.jpg")
    hue, saturation, value = np.moveaxis(rgb2hsv(photo), -1, 0)
    warm = (saturation > 0.6) & (value > 0.6) & ((hue < 0.14) | (hue > 0.93))
    return photo, "Move from the top left corner to the middle of the flower.", to_target(centres(label(warm))[0])


def galaxies() -> tuple[np.ndarray, str, list]:
    from skimage.data import hubble_deep_field
    from skimage.filters import gaussian
    from skimage.measure import label

    photo = hubble_deep_field()
    light = gaussian(photo.mean(axis=2), 3)
    brightest = centres(label(light > 0.4 * light.max()))[:4]
    return photo, "Visit the four largest bright galaxies from left to right.", sorted(brightest)


def eye() -> tuple[np.ndarray, str, list]:
    from skimage.data import retina
    from skimage.filters import gaussian
    from skimage.measure import label

    photo = retina()[::2, ::2]
    light = gaussian(photo.mean(axis=2), 8)
    disc = centres(label(light > 0.85 * light.max()))[0]
    return photo, "Move from the top left corner to the bright disc in the eye.", to_target(disc)


def face() -> tuple[np.ndarray, str, list]:
    from skimage.data import astronaut, lbp_frontal_face_cascade_filename
    from skimage.feature import Cascade

    photo = astronaut()
    detector = Cascade(lbp_frontal_face_cascade_filename())
    box = detector.detect_multi_scale(photo, scale_factor=1.2, step_ratio=1, min_size=(60, 60), max_size=(123, 123))[0]
    middle = [box["c"] + box["width"] / 2, box["r"] + box["height"] / 2]
    return photo, "Move from the top left corner to the face.", to_target(middle)


def centres(labels: np.ndarray, smallest: int = 1) -> list[list[float]]:
    """Centres [x, y] of the labelled regions of at least `smallest` pixels, the largest region first."""
    from skimage.measure import regionprops

    regions = sorted(regionprops(labels), key=lambda region: -region.area)
    return [[float(r.centroid[1]), float(r.centroid[0])] for r in regions if r.area >= smallest]


def to_target(target) -> list[list[float]]:
    """A straight path from the picture's corner, with one point half-way."""
    x, y = target
    return [[0.0, 0.0], [x / 2, y / 2], [x, y]]


def write_record(folder: Path, name: str, form: str, photo, subject, question: str, path: list) -> dict:
    """Writes the photograph in one form and returns its record."""
    ending, save, scale = FORMS[form]
    picture = Image.fromarray(photo)
    picture = picture.resize((round(picture.width * scale), round(picture.height * scale)))
    across, down = picture.width / photo.shape[1], picture.height / photo.shape[0]
    file = f"images/{name}-{form}.{ending}"
    save(picture, subject, folder / file)
    return {
        "id": f"photo-{name}-{form}",
        "image": file,
        "question": question,
        "question_type": "trajectory-sharerobot",
        "answer": [[round(x * across, 1), round(y * down, 1)] for x, y in path],
        "meta_data": {"original_width": picture.width, "original_height": picture.height, "form": form},
    }


def write_records(folder: Path) -> list[dict]:
    """Every row of coins in every form, every colour photograph as a JPEG."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    photo, mask, tasks = coins()
    records = [
        write_record(folder, f"coins-{row}", form, photo, mask, question, path)
        for form in FORMS
        for row, (question, path) in zip(ROWS, tasks, strict=True)
    ]
    for subject in (flower, galaxies, eye, face):
        photo, question, path = subject()
        records.append(write_record(folder, subject.__name__, "jpeg", photo, None, question, path))
    (folder / "photos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records), encoding="utf-8")
    manifest = "datasets:\n- json_path: photos.jsonl\n  data_modality: image\n  sampling_strategy: all\n"
    (folder / "photos.yaml").write_text(manifest, encoding="utf-8")
    return records


def check_packages() -> None:
    try:
        import skimage  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise MissingPackage(f"no photographs ({error}): install the extra, pip install -e '.[photos]'.") from error


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)
    try:
        check_packages()
    except MissingPackage as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {len(write_records(args.output_dir))} records to {args.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
