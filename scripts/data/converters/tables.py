"""Rows of a table: .parquet, .csv, .tsv, .jsonl or .json, a folder of one of the first three, or a saved data set."""

import csv
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from converters.sources import read_json
from task.errors import UserError

SEPARATORS = {".csv": ",", ".tsv": "\t"}
KINDS = (".parquet", *SEPARATORS)
Rows = Iterator[tuple[str, dict]]


def table_rows(source: Path, options) -> tuple[Rows, list[str]]:
    """(iterator of (position for messages, row as a dict), names of the columns).

    Pictures stay encoded as bytes. An empty cell of a .csv or .tsv is None; all its other cells are text. Rows that
    cannot be read are passed to `options.refuse`.
    """
    if (source / "dataset_dict.json").exists():
        raise UserError(f"{source} holds several splits: give the folder of one, {source}/train for example.")
    if (source / "state.json").exists():
        import datasets

        data = datasets.load_from_disk(str(source)).with_format("arrow")
        rows = (row for table in data.iter(1000) for row in table.to_pylist())
        return ((f"{source} row {number}", row) for number, row in enumerate(rows)), data.column_names
    if source.suffix in (".json", ".jsonl") and source.is_file():
        return _json_rows(source, options)
    files = _files(source)
    opened = [_read_parquet(file) if file.suffix == ".parquet" else _read_csv(file, options.refuse) for file in files]
    names = opened[0][1]
    for file, (_, own) in zip(files, opened, strict=True):
        if set(own) != set(names):
            raise UserError(
                f"{file} has the columns {', '.join(own)}, but {files[0]} {', '.join(names)}: make them equal."
            )
    return chain.from_iterable(rows for rows, _ in opened), names


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        files = next((found for kind in KINDS if (found := sorted(source.rglob(f"*{kind}")))), [])
    else:
        files = [source] if source.suffix in KINDS else []
    if not files:
        raise UserError(
            f"{source} is no table: give a {', '.join(KINDS)}, .jsonl or .json file, a folder of files of one of the "
            "first three kinds, or a data set saved to disk."
        )
    return files


def _json_rows(source: Path, options) -> tuple[Rows, list[str]]:
    rows = []
    for place, row in read_json(source, options):
        if isinstance(row, dict):
            rows.append((place, row))
        else:
            options.refuse(f"{place}: the record is of type {type(row).__name__}, not an object")
    return iter(rows), list(dict.fromkeys(name for _, row in rows for name in row))


def _read_parquet(file: Path) -> tuple[Rows, list[str]]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except (ValueError, OSError) as error:
        raise UserError(f"{file} is not a complete parquet file ({error}): replace it.") from error
    rows = (row for batch in table.iter_batches(1000) for row in batch.to_pylist())
    return ((f"{file} row {number}", row) for number, row in enumerate(rows)), table.schema_arrow.names


def _read_csv(file: Path, refuse: Callable[[str], None]) -> tuple[Rows, list[str]]:
    csv.field_size_limit(sys.maxsize)  # thoughts may be long
    rows = _csv_lines(file, refuse)
    names = [name.strip() for name in next(rows, ("", []))[1]]
    if not any(names):
        raise UserError(f"{file} has no first line with the names of the columns: add it.")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{file} has two columns {twice!r}: give each column a name of its own.")
    other = next((mark for mark in (";", "\t", ",") if len(names) == 1 and mark in names[0]), None)
    if other is not None:
        raise UserError(
            f"{file} has the single column {names[0]!r}: separate columns by {SEPARATORS[file.suffix]!r}, not by "
            f"{other!r} (.csv: commas, .tsv: tabs)."
        )
    return _csv_rows(rows, names, refuse), [name for name in names if name]


def _csv_rows(lines: Iterator[tuple[str, list[str]]], names: list[str], refuse: Callable[[str], None]) -> Rows:
    for place, cells in lines:
        if len(cells) > len(names):
            refuse(
                f"{place} has {len(cells)} cells, but there are {len(names)} columns: put a text that holds the "
                "separator between quotation marks."
            )
        elif cells:
            cells += [""] * (len(names) - len(cells))
            yield place, {name: cell if cell.strip() else None for name, cell in zip(names, cells, strict=True) if name}


def _csv_lines(file: Path, refuse: Callable[[str], None]) -> Iterator[tuple[str, list[str]]]:
    """(position, cells) of every row, the names of the columns first. UserError where the file cannot be read on."""
    with open(file, encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines, delimiter=SEPARATORS[file.suffix], strict=True)
        try:
            for cells in rows:
                yield f"{file} line {rows.line_num}", cells
        except UnicodeDecodeError as error:
            raise UserError(f"{file} is not UTF-8 (near line {rows.line_num + 1}): save it as UTF-8.") from error
        except csv.Error as error:
            raise UserError(
                f"{file} line {rows.line_num}: {error}: close every quotation mark, and double those inside a text."
            ) from error
