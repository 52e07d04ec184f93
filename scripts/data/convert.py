"""Converts the files of a public data set to records and a manifest; checks each record as training will read it.

    python scripts/data/convert.py --format sharerobot-affordance affordance.json records/affordance.jsonl
    python scripts/data/convert.py --format table --columns question=problem answer=solution image=images \\
        --question_type math-reasoning data.parquet records/problems.jsonl

Writes OUT (one record per line), OUT with .yaml (the manifest), and OUT with .report.json: how many records were kept,
changed and refused, and why. Exit status: 0 if records were kept, 1 if none were, 2 if the command or the source is
wrong.
"""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()
sys.path.insert(0, str(ROOT / "scripts" / "data"))

from converters import FORMATS
from converters.columns import FIELDS
from converters.conversations import PLANES
from tqdm import tqdm

from dataset.dataset_grpo import make_row
from dataset.media import load_image
from dataset.records import parse_record
from task.errors import UserError
from task.own_tasks import add_task_dir
from task.rewards.given_answer import given_answer
from task.rewards.record_check import check_inside, check_record
from task.task_loader import get_task, load_tasks

LISTED = 20  # refusals printed; the report has all of them
NAMES_OWN_TASK = "llava, vlm-r1 and table"


class Report:
    """Counts of kept, changed, refused and skipped records."""

    def __init__(self):
        self.kept, self.touched, self.skipped = 0, 0, 0
        self.changes: Counter[str] = Counter()
        self.carried: Counter[str] = Counter()
        self.refused: list[str] = []

    def refuse(self, problem: str) -> None:
        self.refused.append(
            problem.encode("utf-8", "backslashreplace").decode()
        )  # an unpaired surrogate cannot be printed

    def as_dict(self) -> dict:
        numbers = {"records": self.kept + len(self.refused) + self.skipped, "kept": self.kept}
        numbers |= {"changed": self.touched, "refused": len(self.refused), "skipped": self.skipped}
        return numbers | {
            "changes": dict(self.changes),
            "carried_over": dict(self.carried),
            "refusals": self.refused,
        }

    def print(self) -> None:
        print(f"kept {self.kept} records, {self.touched} of them changed; refused {len(self.refused)}")
        if self.skipped:
            print(f"left out by --where: {self.skipped}")
        for change, count in self.changes.most_common():
            print(f"  changed  {count:>7}  {change}")
        for key, count in self.carried.most_common():
            print(f"  carried  {count:>7}  key {key}, not part of the format")
        for problem in self.refused[:LISTED]:
            print(f"  refused  {problem}")
        if len(self.refused) > LISTED:
            print(f"  refused  and {len(self.refused) - LISTED} more, see the report")


def main(argv: list[str] | None = None) -> int:
    args = _parse_arguments(argv)
    report, tasks = Report(), load_tasks()
    args.refuse = report.refuse
    read, convert = FORMATS[args.format]
    try:
        if args.question_type is not None:
            get_task(args.question_type, tasks)
        raws = _read(read, args)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with open(args.out, "w", encoding="utf-8") as lines:
            for record in _records(raws, convert, args, tasks, report):
                lines.write(json.dumps(record, ensure_ascii=False) + "\n")
    except (ValueError, OSError) as error:
        args.out.unlink(missing_ok=True)  # it was not there before
        print(error, file=sys.stderr)
        return 2
    manifest = {"json_path": args.out.name, "data_root": os.path.relpath(args.image_root, args.out.parent)}
    manifest_text = "datasets:\n- " + "\n  ".join(f"{key}: {json.dumps(value)}" for key, value in manifest.items())
    args.out.with_suffix(".yaml").write_text(manifest_text + "\n", encoding="utf-8")
    args.out.with_suffix(".report.json").write_text(json.dumps(report.as_dict(), indent=1), encoding="utf-8")
    report.print()
    return 0 if report.kept else 1


def _read(read, args):
    try:
        return read(args.source, args)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{args.source} is not of the form {args.format} ({error!r}): is --format right?") from error


def _records(raws, convert, args, tasks, report: Report):
    """Yields the records that can be trained on, and counts the outcome of each in the report."""
    seen: set[str] = set()
    for place, raw in tqdm(raws, unit="record", disable=not sys.stderr.isatty()):
        if not _wanted(raw, args.where):
            report.skipped += 1
            continue
        try:
            converted = convert(raw, args)
        except Exception as error:  # a source may contain anything
            report.refuse(f"{place}: {error if isinstance(error, ValueError) else f'unreadable ({error!r})'}")
            continue
        for one in converted:
            carried = _carry(one)
            try:
                _check(one, place, seen, args.image_root, tasks)
            except ValueError as error:
                report.refuse(str(error) if str(error).startswith(place) else f"{place}: {error}")
                continue
            report.kept += 1
            report.touched += bool(one.changes)
            report.changes.update(dict.fromkeys(one.changes, 1))
            report.carried.update(carried)
            yield one.record


def _carry(one) -> list[str]:
    """Copies the source's other fields into the record and returns their names; fields that cannot be are changes."""
    carried = []
    for key, value in one.rest.items():
        if key in one.record:
            one.changes.append(f"the source's own {key} left out")
        elif not _is_json(value):
            one.changes.append(f"{key} left out, which is not JSON")
        else:
            one.record[key] = value
            carried.append(key)
    return carried


def _is_json(value) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _check(one, place: str, seen: set, image_root: Path, tasks) -> None:
    """Reads the record as training does, converts its answer to pixels, and checks the answer with its task.

    Raises UserError that gives the reason why the record cannot be used.
    """
    record = one.record
    if record.get("id") is not None and str(record["id"]) in seen:
        del record["id"]
        one.changes.append("duplicate id left out")
    task = get_task(record["question_type"], tasks)
    answer = given_answer(task, record["answer"])
    if answer is not record["answer"]:
        record["answer"] = answer
        one.changes.append("answer read as JSON")
    parsed = parse_record(record, place, place, image_root)
    make_row(parsed | {"place": place}, tasks)  # checks that the markers fit the media
    sizes = [load_image(path).size for path in parsed["images"]]
    size = sizes[0] if sizes else None
    if one.size is not None and size != tuple(one.size):
        raise UserError(f"the picture is {size}, but its data says {tuple(one.size)}: coordinates would be wrong")
    if one.plane is not None:
        if size is None:
            raise UserError("coordinates need a picture")
        record["answer"] = parsed["answer"] = task.process_answer(record["answer"], one.plane, size)
        one.changes.append("coordinates converted to pixels")
    check_record(task, parsed, size, size)
    check_inside(task, parsed, size)
    if "id" in record:
        seen.add(str(record["id"]))


def _wanted(raw, where: dict) -> bool:
    cells = raw.get("cells", raw) if isinstance(raw, dict) else {}
    return all(str(cells.get(key)) == value for key, value in where.items())


def _pairs(texts: list[str], parser, flag: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if not all(key and equals and value for key, equals, value in pairs):
        parser.error(f"{flag} takes KEY=VALUE, got {' '.join(texts)}")
    return {key: value for key, _, value in pairs}


def _parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--format", required=True, choices=FORMATS, help="format of the source")
    parser.add_argument("source", metavar="IN", type=Path, help="file or folder to read")
    parser.add_argument("out", metavar="OUT", type=Path, help="file for the records, a new one that ends in .jsonl")
    parser.add_argument("--image_root", type=Path, help="folder the source's picture paths start from (default: IN's)")
    parser.add_argument("--question_type", help=f"task of the records, for {NAMES_OWN_TASK}; the others name their own")
    parser.add_argument(
        "--coordinates", choices=PLANES, default="pixels", help="scale of the boxes and points in conversations"
    )
    parser.add_argument(
        "--columns", nargs="+", default=[], metavar="FIELD=COLUMN", help=f"columns of {', '.join(FIELDS)}"
    )
    parser.add_argument(
        "--where", nargs="+", default=[], metavar="KEY=VALUE", help="convert only source records with these values"
    )
    add_task_dir(parser)
    args = parser.parse_args(argv)
    args.columns, args.where = _pairs(args.columns, parser, "--columns"), _pairs(args.where, parser, "--where")
    if not set(args.columns) <= set(FIELDS):
        parser.error(f"--columns knows the fields {', '.join(FIELDS)}")
    if (args.question_type is None) == (args.format in ("llava", "vlm-r1", "table")):
        parser.error(f"--question_type belongs to {NAMES_OWN_TASK}, and these need it")
    if not args.source.exists():
        parser.error(f"{args.source} does not exist")
    if args.out.suffix != ".jsonl" or args.out.exists():
        parser.error(f"{args.out} must be a new file that ends in .jsonl")
    args.image_root = args.image_root or (args.source if args.source.is_dir() else args.source.parent)
    if not args.image_root.is_dir():
        parser.error(f"--image_root {args.image_root} is not a folder")
    args.pictures = args.out.parent.resolve() / f"{args.out.stem}_pictures"
    return args


if __name__ == "__main__":
    raise SystemExit(main())
