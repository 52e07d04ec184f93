"""Source files -> raw records, for the formats that are lists of JSON objects."""

import json
from pathlib import Path

from dataset.records import read_records
from task.errors import UserError


def read_json(source: Path, options):
    """(position, raw) of a .json list, a .jsonl file, or a .json object whose `data` is the list."""
    if source.suffix == ".json":
        content = load(source)
        if isinstance(content, dict):
            if not isinstance(content.get("data"), list):
                raise UserError(f"{source} is a JSON object without a list `data`: is --format right?")
            return [(f"{source} record {number}", raw) for number, raw in enumerate(content["data"])]
    elif source.suffix != ".jsonl":
        raise UserError(f"{source} must end in .json or .jsonl for this format: unpack or rename it.")
    return [(place, raw) for place, _, raw in read_records(source, source.stem, options.refuse)]


def read_json_folder(source: Path, options):
    """As `read_json`; or, for a folder, every .json file below it is one record."""
    if not source.is_dir():
        return read_json(source, options)
    files = sorted(source.rglob("*.json"))
    if not files:
        raise UserError(f"{source} contains no .json file: give the folder with the problems.")
    return [(str(file), load(file)) for file in files]


def load(source: Path):
    """The JSON content of a file; UserError that gives the position of a fault."""
    try:
        return json.loads(source.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} is not JSON ({error}): correct it, or give another --format.") from error
