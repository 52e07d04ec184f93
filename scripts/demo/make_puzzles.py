"""Makes short puzzles of two of reasoning-gym's generators, with thoughts for a warm start: for small language models.

    python scripts/demo/make_puzzles.py --out runs/puzzles      # needs the extra `reasoning`

Half are sums of two to four one-digit numbers (chain_sum), half words of three to five letters to spell backward
(spell_backward); the records are those of task/reasoning_gym.py. Written: warm, train and test, each as NAME.jsonl with
its manifest NAME.yaml. No question is in two of them. The records of `warm` have a `thought`, as scripts/train/sft.py
reads it. `kind` names the generator (`--by kind` of scripts/lab/compare.py).
"""

import argparse
import json
import sys
from itertools import count, cycle, islice
from pathlib import Path

LIMITS = {
    "chain_sum": {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 1},
    "spell_backward": {"min_word_len": 3, "max_word_len": 5},
}


def sum_thought(metadata: dict) -> str:
    """The running results.

    >>> sum_thought({"expression": "4 - 1 - 7"})
    '4 - 1 = 3, 3 - 7 = -4'
    """
    first, *rest = metadata["expression"].split()
    total, steps = int(first), []
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        result = total + int(sign + term)
        steps.append(f"{total} {sign} {term} = {result}")
        total = result
    return ", ".join(steps)


def word_thought(metadata: dict) -> str:
    """The letters, and then from the last to the first.

    >>> word_thought({"word": "door"})
    'd o o r, backward r o o d'
    """
    word = metadata["word"]
    return f"{' '.join(word)}, backward {' '.join(reversed(word))}"


THOUGHTS = {"chain_sum": sum_thought, "spell_backward": word_thought}


def puzzles(generator: str):
    """Entries of a generator, without end and without repeated questions."""
    import reasoning_gym

    seen = set()
    for seed in count(1):
        for entry in reasoning_gym.create_dataset(generator, seed=seed, size=500, **LIMITS[generator]):
            if entry["question"] not in seen:
                seen.add(entry["question"])
                yield json.loads(json.dumps(entry, default=list))


def record(name: str, generator: str, entry: dict, with_thought: bool) -> dict:
    answer = entry["answer"] if with_thought else {"dataset": generator, "entry": entry}
    thought = {"thought": THOUGHTS[generator](entry["metadata"])} if with_thought else {}
    return {
        "id": name,
        "question": entry["question"],
        "answer": answer,
        "question_type": "reasoning-gym",
        "kind": generator,
        **thought,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--warm", type=int, default=400, help="records of the warm start (default 400)")
    parser.add_argument("--train", type=int, default=600, help="records of the training (default 600)")
    parser.add_argument("--test", type=int, default=200, help="records of the test (default 200)")
    args = parser.parse_args(argv)
    sizes = {"warm": args.warm, "train": args.train, "test": args.test}
    if min(sizes.values()) < 2:
        parser.error("--warm, --train and --test: give at least 2 records each, one of each generator")
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        sources = {generator: puzzles(generator) for generator in LIMITS}
        for split, size in sizes.items():
            rows = [
                record(f"{split}-{index:04d}", kind, next(sources[kind]), split == "warm")
                for index, kind in enumerate(islice(cycle(LIMITS), size))
            ]
            (args.out / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            (args.out / f"{split}.yaml").write_text(f"datasets:\n- json_path: {split}.jsonl\n", encoding="utf-8")
    except ModuleNotFoundError as error:
        parser.error(f"{error}: install the extra, pip install -e '.[reasoning]'")
    print(f"wrote {', '.join(sizes)} to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
