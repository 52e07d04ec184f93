"""Any table: a parquet file, a folder of them, or a folder saved by `datasets`; --columns names the columns."""

import io
from pathlib import Path

from PIL import Image

from converters.converted import Converted, others, untagged
from task.errors import UserError

FIELDS = ("question", "answer", "image", "id")


def read_table(source, options):
    """(position, row) of every row, lazily, because a table may not fit into memory."""
    if not {"question", "answer"} <= set(options.columns):
        raise UserError("--format table needs --columns question=COLUMN answer=COLUMN [image=COLUMN] [id=COLUMN].")
    rows, names = table_rows(source)
    missing = [column for column in options.columns.values() if column not in names]
    if missing:
        raise UserError(f"{source} has no column {missing[0]!r}: its columns are {', '.join(names)}.")
    return ((f"{source} row {number}", {"number": number} | {"cells": row}) for number, row in enumerate(rows))


def row(raw, options):
    cells = {field: raw["cells"][column] for field, column in options.columns.items()}
    record = {"question_type": options.question_type, "question": cells["question"], "answer": cells["answer"]}
    if record["answer"] is None:
        raise UserError(f"there is no answer in the column {options.columns['answer']!r}")
    changes = []
    record["answer"] = _unwrapped(record["answer"], changes)
    if cells.get("id") is not None:
        record["id"] = str(cells["id"])
    if cells.get("image") is not None:
        images = cells["image"] if isinstance(cells["image"], list) else [cells["image"]]
        record["image"] = [_picture(one, raw["number"], place, options, changes) for place, one in enumerate(images)]
    return [Converted(record, changes, rest=others(raw["cells"], *options.columns.values()))]


def _unwrapped(answer, changes):
    """The answer, or each of a list of answers, without the <answer> tags that rewards parse."""
    if isinstance(answer, list):
        return [_unwrapped(one, changes) for one in answer]
    return untagged(answer, changes) if isinstance(answer, str) else answer


def _picture(cell, row_number, place, options, changes):
    """The path of a cell's picture; if the table contains the picture itself, it is written next to the output."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, dict) and cell.get("bytes") is None and isinstance(cell.get("path"), str):
        return cell["path"]
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(content, bytes):
        raise UserError(f"the picture is a {type(cell).__name__}, neither a path nor a picture's bytes")
    try:
        ending = Image.open(io.BytesIO(content)).format.lower()
    except OSError as error:
        raise UserError(f"the picture's bytes cannot be read as a picture ({error})") from error
    options.pictures.mkdir(parents=True, exist_ok=True)
    path = options.pictures / f"{row_number:06d}-{place}.{ending}"
    path.write_bytes(content)
    changes.append("picture written to a file")
    return str(path)


def _opened(file: Path, parquet):
    try:
        return parquet.ParquetFile(file)
    except (ValueError, OSError) as error:
        raise UserError(f"{file} is not a complete parquet file ({error}): replace it.") from error


def table_rows(source: Path):
    """(iterator of rows as dicts, column names); pictures stay encoded as bytes."""
    if (source / "dataset_dict.json").exists():
        raise UserError(f"{source} holds several splits: give the folder of one, {source}/train for example.")
    if (source / "state.json").exists():
        import datasets

        data = datasets.load_from_disk(str(source)).with_format("arrow")
        return (one for table in data.iter(1000) for one in table.to_pylist()), data.column_names
    import pyarrow.parquet

    files = sorted(source.rglob("*.parquet")) if source.is_dir() else [source]
    if not files or any(file.suffix != ".parquet" for file in files):
        raise UserError(f"{source} is neither a .parquet file, a folder of them, nor a data set saved to disk.")
    tables = [_opened(file, pyarrow.parquet) for file in files]
    batches = (batch for table in tables for batch in table.iter_batches(1000))
    return (one for batch in batches for one in batch.to_pylist()), tables[0].schema_arrow.names
