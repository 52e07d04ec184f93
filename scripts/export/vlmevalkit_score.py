"""Scores predictions of VLMEvalKit on the tests of this folder: `python vlmevalkit_score.py FILE.xlsx|.tsv|.json ...`.

Prints the metrics that eval.py of GRPO-MA has for the same completions, as JSON.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(files: list[str]) -> int:
    try:
        from trainer.evaluation.exported import ExportedTests
    except ImportError as error:
        print(
            f"vlmevalkit_score.py: GRPO-MA, which scores, cannot be imported ({error}): put its checkout on "
            "PYTHONPATH, or install it in this environment",
            file=sys.stderr,
        )
        return 2
    if not files:
        print("vlmevalkit_score.py: name the files of predictions, such as outputs/*/*.xlsx", file=sys.stderr)
        return 2
    exported, found = ExportedTests(HERE / "tests"), {}
    try:
        exported.check()
    except ValueError as error:
        print(f"vlmevalkit_score.py: {error}", file=sys.stderr)
        return 2
    for file in map(Path, files):
        try:
            found |= exported.summary(predictions(exported, file))
        except (OSError, ValueError, KeyError, IndexError) as error:
            print(f"vlmevalkit_score.py: {file} holds no predictions of these tests ({error!r})", file=sys.stderr)
            return 2
    print(json.dumps(found, indent=2))
    return 0


def predictions(exported, file: Path) -> list[dict]:
    """The predictions of a file, whose name ends with that of a task of this folder."""
    names = [tests.stem for tests in (HERE / "tests").glob("*.jsonl") if file.stem.endswith(tests.stem)]
    if not names:
        raise ValueError("its name ends with none of the tests' names")
    lines = (HERE / "tests" / f"{max(names, key=len)}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(json.loads(line)["row"]) for line in lines]
    return [exported.prediction(rows[index], text.strip()) for index, text in table(file)]


def table(file: Path) -> list[tuple[int, str]]:
    """(index, completion) of each line; an empty cell is an empty completion."""
    import pandas

    if file.suffix == ".json":
        frame = pandas.DataFrame(json.loads(file.read_text(encoding="utf-8")))
    elif file.suffix == ".xlsx":
        frame = pandas.read_excel(file)
    else:
        frame = pandas.read_csv(file, sep="\t")
    cells = frame[["index", "prediction"]].values
    return [(int(index), "" if pandas.isna(text) else str(text)) for index, text in cells]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
