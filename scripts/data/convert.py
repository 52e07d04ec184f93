"""Converts the files of a public data set to records and a manifest; checks each record as training will read it.

    python scripts/data/convert.py --format sharerobot-affordance affordance.json records/affordance.jsonl
    python scripts/data/convert.py --format table --question_type ocr-vqa --columns question=prompt answer=label \\
        --split 0.9 signs.csv records/signs.jsonl

Writes OUT (one record per line), OUT with .yaml (the manifest), and OUT with .report.json: how many records were kept,
changed and refused, and why. With --split, OUT_train and OUT_test instead of OUT. Exit status: 0 if records were kept,
1 if none were, 2 if the command or the source is wrong; then nothing is written.
"""

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()
sys.path.insert(0, str(ROOT / "scripts" / "data"))

from converters import FORMATS
from converters.columns import FIELDS
from converters.conversations import PLANES
from converters.ids import made_id
from converters.output import Output, record_files
from converters.report import Report
from tqdm import tqdm

from dataset.dataset_grpo import make_row
from dataset.media import load_image
from dataset.records import parse_record
from task.errors import UserError
from task.own_tasks import add_task_dir
from task.rewards.given_answer import given_answer
from task.rewards.record_check import check_inside, check_record
from task.task_loader import get_task, load_tasks

NEED_TASK = ("llava", "sharegpt", "vlm-r1", "table")
NAMES_OWN_TASK = f"{', '.join(NEED_TASK[:-1])} and {NEED_TASK[-1]}"


def main(argv: list[str] | None = None) -> int:
    args = _parse_arguments(argv)
    report = Report()
    args.refuse = report.refuse
    read, convert = FORMATS[args.format]
    try:
        tasks = load_tasks()
        if args.question_type is not None:
            get_task(args.question_type, tasks)
        raws = _read(read, args)
        with Output(args.out, args.split, args.pictures) as output:
            for record in _records(raws, convert, args, tasks, report):
                output.add(record)
            report.print(args.where)
            if report.kept:
                output.finish(args.image_root, report.as_dict())
                output.print()
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
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
            report.first_skipped = report.first_skipped or (raw if isinstance(raw, dict) else {})
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
            if one.record.get("id") is None:
                one.record = one.record | {"id": made_id(one.record, args.source, report.made_ids, seen)}
            seen.add(str(one.record["id"]))
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
        one.changes.append("duplicate id replaced")
    task = get_task(record["question_type"], tasks)
    answer = given_answer(task, record["answer"])
    if answer is not record["answer"]:
        record["answer"] = answer
        one.changes.append("answer read as JSON")
    _shorten_paths(one, image_root)
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


def _shorten_paths(one, image_root: Path) -> None:
    """Makes absolute paths of media below the image root relative to it, so that the folder can be moved."""
    root = os.path.abspath(image_root)
    for kind in ("image", "video"):
        paths = one.record.get(kind)
        listed = paths if isinstance(paths, list) else [paths]
        inside = [isinstance(path, str) and os.path.isabs(path) and path.startswith(f"{root}/") for path in listed]
        if any(inside):
            short = [os.path.relpath(path, root) if ours else path for path, ours in zip(listed, inside, strict=True)]
            one.record[kind] = short if isinstance(paths, list) else short[0]
            one.changes.append("absolute path made relative to the image root")


def _wanted(raw, where: dict) -> bool:
    cells = raw if isinstance(raw, dict) else {}
    return all(str(cells.get(key)) == value for key, value in where.items())


def _one_by_one(argv: list[str]) -> list[str]:
    """`--columns A=B C=D FILE` as `--columns A=B --columns C=D FILE`, so that files may follow."""
    words, flag = [], None
    for word in argv:
        if flag is not None and "=" in word and not word.startswith("-"):
            words += [word] if words[-1] == flag else [flag, word]
        else:
            flag = word if word in ("--columns", "--where") else None
            words.append(word)
    return words


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
    parser.add_argument(
        "--split",
        type=float,
        metavar="SHARE",
        help="write OUT_train and OUT_test: about SHARE (0.9) of the ids, the rest",
    )
    parser.add_argument("--question_type", help=f"task of the records, for {NAMES_OWN_TASK}; the others name their own")
    parser.add_argument(
        "--coordinates", choices=PLANES, default="pixels", help="scale of the boxes and points in conversations"
    )
    parser.add_argument(
        "--columns",
        action="append",
        default=[],
        metavar="FIELD=COLUMN",
        help=f"columns of a table, one or more pairs; fields: {', '.join(FIELDS)} (default: columns of these names)",
    )
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="convert only source records with these values, one or more pairs",
    )
    add_task_dir(parser)
    args = parser.parse_args(_one_by_one(sys.argv[1:] if argv is None else argv))
    args.columns, args.where = _pairs(args.columns, parser, "--columns"), _pairs(args.where, parser, "--where")
    unknown = [field for field in args.columns if field not in FIELDS]
    if unknown:
        parser.error(f"--columns has no field {unknown[0]!r}: its fields are {', '.join(FIELDS)}")
    if args.columns and args.format != "table":
        parser.error(f"--columns belongs to --format table, not to {args.format}")
    if args.split is not None and not 0 < args.split < 1:
        parser.error(f"--split {args.split:g} must be above 0 and below 1, such as 0.9")
    if (args.question_type is None) == (args.format in NEED_TASK):
        parser.error(f"--question_type belongs to {NAMES_OWN_TASK}, and these need it")
    if not args.source.exists():
        parser.error(f"{args.source} does not exist")
    if args.out.suffix != ".jsonl":
        parser.error(f"{args.out} must be a new file that ends in .jsonl")
    records = record_files(args.out, args.split)
    for file in (*records, *(path.with_suffix(".yaml") for path in records), args.out.with_suffix(".report.json")):
        if file.exists():
            parser.error(f"{file} exists: remove it, or name another OUT")
    args.root_given = args.image_root is not None
    args.image_root = args.image_root or (args.source if args.source.is_dir() else args.source.parent)
    if not args.image_root.is_dir():
        parser.error(f"--image_root {args.image_root} is not a folder")
    args.pictures = args.out.parent.resolve() / f"{args.out.stem}_pictures"
    return args


if __name__ == "__main__":
    raise SystemExit(main())
