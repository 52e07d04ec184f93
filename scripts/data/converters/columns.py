"""Any table (converters/tables.py): a record per row. --columns names the columns that do not have a field's name."""

import hashlib
import io
import json
import os
from itertools import chain

from PIL import Image

from converters.converted import Converted, others, thought_text, written_parts
from converters.tables import table_rows
from dataset.manifest import nearest
from dataset.records import MEDIA_LOOKALIKES
from task.errors import UserError

FIELDS = ("question", "answer", "image", "video", "thought", "id")


def read_table(source, options):
    """(position, row) of every row, lazily, because a table may not fit into memory.

    Sets `options.columns`, field -> column, to what applies. Where the table contains the pictures themselves and no
    --image_root was given, `options.image_root` becomes the folder of the output, to which they are written.
    """
    rows, names = table_rows(source, options)
    options.columns = _columns(source, options.columns, names)
    first = next(rows, None)
    if first is None:
        return iter(())
    column = options.columns.get("image")
    if column is not None and not options.root_given and any(map(_holds_picture, _listed(first[1].get(column)))):
        options.image_root = options.out.parent
    return chain([first], rows)


def _columns(source, given: dict[str, str], names: list[str]) -> dict[str, str]:
    """Field -> column: as given, else the column with the field's name, or for media with one of its usual names."""
    listed = f"its columns are {', '.join(names)}"
    for field, column in given.items():
        if column not in names:
            raise UserError(f"{source} has no column {column!r}: {listed} (--columns {field}=COLUMN).")
    columns = dict(given)
    for field in FIELDS:
        usual = (field, *MEDIA_LOOKALIKES.get(field, ()))
        found = [name for name in names if name.lower() in usual and name not in columns.values()]
        if field in columns or not found:
            continue
        if len(found) > 1:
            raise UserError(
                f"{source} has the columns {' and '.join(found)}: choose one, --columns {field}={found[0]}."
            )
        columns[field] = found[0]
    missing = [field for field in ("question", "answer") if field not in columns]
    if missing:
        raise UserError(
            f"{source} has no column {' and no column '.join(missing)}{nearest(missing[0], names)}: {listed}; name "
            f"them, --columns {' '.join(f'{field}=COLUMN' for field in missing)} (fields: {', '.join(FIELDS)})."
        )
    return columns


def row(raw, options):
    cells = {field: raw.get(column) for field, column in options.columns.items()}
    for field in ("question", "answer"):
        if cells[field] is None:
            raise UserError(f"there is no {field} in the column {options.columns[field]!r}")
    changes = []
    thought, answer = _unwrapped(cells["answer"], changes)
    record = {"question_type": options.question_type, "question": cells["question"], "answer": answer}
    if cells.get("id") is not None:
        record["id"] = str(cells["id"])
    for kind in ("image", "video"):
        media = [_path(one, options, changes) for one in _listed(cells.get(kind))]
        record |= {kind: media[0] if len(media) == 1 else media} if media else {}
    if cells.get("thought") is not None:
        thought = thought_text(cells["thought"], changes)
    record |= {} if thought is None else {"thought": thought}
    return [Converted(record, changes, rest=others(raw, *options.columns.values()))]


def _unwrapped(answer, changes):
    """(thought or None, the answer, or each of a list of answers, without the tags that rewards parse)."""
    if isinstance(answer, list):
        return None, [_unwrapped(one, changes)[1] for one in answer]
    return written_parts(answer, changes) if isinstance(answer, str) else (None, answer)


def _listed(cell) -> list:
    """The media of a cell: one, a list, or the text of a JSON list."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = json.loads(cell)
        except ValueError:
            return [cell]
    return [] if cell is None else cell if isinstance(cell, list) else [cell]


def _holds_picture(cell) -> bool:
    return isinstance(cell.get("bytes") if isinstance(cell, dict) else cell, bytes)


def _path(cell, options, changes) -> str:
    """The path of a cell's medium; a picture that the table itself contains is written beside the output."""
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
        raise UserError("the picture's bytes cannot be read as a picture") from error
    # Named by its content: the same picture is written once, and its name does not depend on its row.
    path = options.pictures / f"{hashlib.sha256(content).hexdigest()[:16]}.{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    changes.append("picture written to a file")
    return os.path.relpath(path, options.image_root)
