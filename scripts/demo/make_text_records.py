"""Makes the demo records of mathematics, programs and puzzles: small, exact, and determined by a seed.

    python scripts/demo/make_text_records.py                        # metadata/demo: 24 train and 8 test of each
    python scripts/demo/make_text_records.py --families reasoning --train 500 --out runs/reasoning

math: word problems, and the area or perimeter of a drawn rectangle (a picture). code: small functions with asserts, and
programs that read and print. reasoning: puzzles of reasoning-gym (extra `reasoning`), each kept only if its own
verifier scores the stored answer 1. Train and test use different seeds.
"""

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

from PIL import Image, ImageDraw

SEEDS = {"train": 1, "test": 2}
PUZZLES = ("chain_sum", "basic_arithmetic", "spell_backward", "letter_counting", "number_sorting", "leg_counting")
PICTURE = (112, 84)


def math_record(rng: random.Random, name: str, folder: Path) -> dict:
    """A word problem, or, in a third of cases, a rectangle labelled with its sides."""
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    if rng.randrange(3) == 0:
        wanted, answer = rng.choice((("area", a * b), ("perimeter", 2 * (a + b))))
        draw_rectangle(a, b).save(folder / "images" / f"{name}.png")
        question = f"What is the {wanted} of the rectangle? Its sides are given in cm."
        return {"image": f"images/{name}.png", "question": question, "answer": str(answer)}
    kind = rng.choice(("share", "cost", "power"))
    if kind == "share":
        return {"question": f"{a} friends share {b} cakes. How much does each get?", "answer": f"\\frac{{{b}}}{{{a}}}"}
    if kind == "cost":
        return {"question": f"A book costs {a} dollars. How much do {b} books cost?", "answer": str(a * b)}
    return {"question": f"What is ${a}^2 - {b}$?", "answer": str(a * a - b)}


def draw_rectangle(a: int, b: int) -> Image.Image:
    picture = Image.new("RGB", PICTURE, (250, 248, 240))
    draw = ImageDraw.Draw(picture)
    width, height = 6 * a + 10, 4 * b + 6
    left, top = 14, (PICTURE[1] - height) // 2
    draw.rectangle((left, top, left + width, top + height), fill=(170, 200, 235), outline=(20, 30, 60), width=2)
    draw.text((left + width // 2 - 3, top - 13), str(a), fill=(0, 0, 0))
    draw.text((left + width + 6, top + height // 2 - 5), str(b), fill=(0, 0, 0))
    return picture


def code_record(rng: random.Random, name: str, folder: Path) -> dict:
    """A function with asserts, or, in a third of cases, a program that reads and prints."""
    n, k = rng.randint(2, 9), rng.randint(2, 9)
    words, function = rng.choice(
        (
            (f"{n} times x plus {k}", lambda x: n * x + k),
            (f"the square of x minus {k}", lambda x: x * x - k),
            (f"the remainder of x divided by {n}", lambda x: x % n),
            (f"x when x is above {k}, else {k}", lambda x: max(x, k)),
        )
    )
    values = rng.sample(range(-20, 60), 4)
    if rng.randrange(3) == 0:
        question = f"Write a Python program that reads a whole number x and prints {words}."
        cases = [{"input": f"{x}\n", "output": f"{function(x)}\n"} for x in values]
        return {"question": question, "answer": {"cases": cases}}
    tests = [f"assert f({x}) == {function(x)}" for x in values]
    question = f"Write a Python function f(x) that returns {words}. It must pass: {tests[0]}"
    return {"question": question, "answer": {"tests": tests}}


def reasoning_record(rng: random.Random, name: str, folder: Path) -> dict:
    """One puzzle of reasoning-gym whose own verifier accepts the stored answer."""
    import reasoning_gym

    while True:
        dataset, seed = rng.choice(PUZZLES), rng.randrange(2**31)
        entry = json.loads(json.dumps(reasoning_gym.create_dataset(dataset, seed=seed, size=1)[0], default=list))
        score = reasoning_gym.get_score_answer_fn(dataset)
        if entry["answer"] is not None and score(entry["answer"], entry) == 1.0:
            return {"question": entry["question"], "answer": {"dataset": dataset, "entry": entry}}


FAMILIES = {
    "math": ("math-reasoning", math_record),
    "code": ("code-generation", code_record),
    "reasoning": ("reasoning-gym", reasoning_record),
}


def write_family(family: str, counts: dict[str, int], out: Path) -> None:
    """FAMILY_train.yaml and FAMILY_test.yaml in `out`, their records and pictures in out/FAMILY."""
    question_type, make = FAMILIES[family]
    folder = out / family
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for split, count in counts.items():
        rows = []
        for index in range(count):
            name = f"demo-{family}-{split}-{index:05d}"
            rng = random.Random(f"{family}:{SEEDS[split]}:{index}")
            rows.append({"id": name, **make(rng, name, folder), "question_type": question_type})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        manifest = f"datasets:\n- json_path: {family}/{split}.jsonl\n  data_root: {family}\n  sampling_strategy: all\n"
        (out / f"{family}_{split}.yaml").write_text(manifest, encoding="utf-8")
    if not any((folder / "images").iterdir()):
        (folder / "images").rmdir()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, default=ROOT / "metadata" / "demo", help="folder to write")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--train", type=int, default=24, help="train records per family (default 24)")
    parser.add_argument("--test", type=int, default=8, help="test records per family (default 8)")
    args = parser.parse_args(argv)
    if min(args.train, args.test) < 1:
        parser.error("--train and --test: give at least 1 record each")
    try:
        for family in args.families:
            write_family(family, {"train": args.train, "test": args.test}, args.out)
    except ModuleNotFoundError as error:
        parser.error(f"{error}: install the extra, pip install -e '.[reasoning]'")
    print(f"wrote {', '.join(args.families)} to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
