"""Record files -> checked records: a .json list, .jsonl lines or a .parquet table; errors name file and record."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from dataset.manifest import nearest
from task.errors import UserError

FIELDS = ("id", "question", "answer", "question_type", "image", "video")
OPTIONAL = ("image", "video", "thought")  # a record may lack them, so a misspelt one would pass unnoticed
# Key names of other projects, matched in any case; as extra keys they would lead to a row without its picture.
MEDIA_LOOKALIKES = {
    "image": ("images", "image_path", "image_paths", "image_file", "img", "imgs", "picture", "pictures", "photo"),
    "video": ("videos", "video_path", "video_paths", "video_file", "clip"),
}


EMPTY = "{path} holds no records: give it at least one, or take it out of the manifest."


def read_records(path: Path, name: str, on_problem) -> list[tuple[str, str, object]]:
    """(place for messages, default id, raw record) of each record of a file.

    An empty cell of a .parquet file is a missing key, except for the answer, which may be null.
    The default id is "<name>:<index from 0>"; blank lines of a .jsonl are not counted. Files are UTF-8, with or without
    a byte order mark.

    Args:
        name: name of the file in ids.
        on_problem: called with one sentence for each fault (not UTF-8, not JSON); the record is then left out.
    """
    if path.suffix == ".parquet":
        return [(place, f"{name}:{index}", raw) for index, (place, raw) in enumerate(_table_rows(path, on_problem))]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        on_problem(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8.")
        return []
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        on_problem(
            f"{path} line {line} holds a NUL: save the file as UTF-8 (this may be UTF-16), or write it whole again."
        )
        return []
    split = _json_lines if path.suffix == ".jsonl" else _json_list
    return [(place, f"{name}:{index}", raw) for index, (place, raw) in enumerate(split(path, text, on_problem))]


def _json_lines(path: Path, text: str, on_problem) -> list[tuple[str, object]]:
    parts = []
    # Not splitlines(): U+2028 and form feeds may occur inside a JSON string.
    lines = [(f"{path} line {number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for place, line in lines:
        try:
            parts.append((place, _loads(line)))
        except (ValueError, RecursionError) as error:
            # Lines are parsed one by one, so the parser's own line number is always 1.
            reason = str(error).replace("line 1 ", "")
            on_problem(f"{place} is not JSON ({reason}): each line must hold one whole record.")
    if not lines:
        on_problem(EMPTY.format(path=path))
    return parts


def _table_rows(path: Path, on_problem) -> list[tuple[str, object]]:
    from pyarrow import ArrowException, parquet

    try:
        rows = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError, ValueError) as error:
        on_problem(f"{path} is not a complete parquet file ({' '.join(str(error).split())}): write it again.")
        return []
    if not rows:
        on_problem(EMPTY.format(path=path))
    kept = []
    for number, row in enumerate(rows):
        place = f"{path} row {number}"
        if any(_holds_bytes(value) for value in row.values()):
            on_problem(
                f"{place} holds a picture itself: convert the table with scripts/data/convert.py --format table."
            )
            continue
        kept.append((place, {key: value for key, value in row.items() if value is not None or key == "answer"}))
    return kept


def _holds_bytes(value) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, bytes) or any(_holds_bytes(one) for one in inner)


def _json_list(path: Path, text: str, on_problem) -> list[tuple[str, object]]:
    try:
        content = _loads(text) if text.strip() else []
    except (ValueError, RecursionError) as error:
        on_problem(f"{path} is not JSON ({error}): correct it there, or name the file .jsonl if each line is a record.")
        return []
    if not isinstance(content, list):
        on_problem(f"{path} must hold a JSON list of records, not {_short(content)}: put [ ] round the records.")
        return []
    if not content:
        on_problem(EMPTY.format(path=path))
    return [(f"{path} record {number}", raw) for number, raw in enumerate(content)]


def parse_record(
    raw, place: str, default_id: str, data_root: Path, modality: str | None = None, on_bad_media: str = "error"
) -> dict:
    """Checks one raw record and returns {"id", "question_type", "question", "answer", "images", "videos", "extra"}.

    Media paths become absolute below `data_root`. With on_bad_media "error" they must exist; with "skip" they may be
    missing, and the row is skipped when they are decoded. `answer` may be any JSON value (null for a task without an
    answer), but the key is required.

    Raises:
        UserError: one sentence with the place, the id, the value, the rule and the way out.
    """
    if not isinstance(raw, dict):
        raise UserError(f'{place}: a record must be a JSON object, not {_short(raw)}: write {{"question": ...}}.')
    record_id = raw.get("id", default_id)
    if isinstance(record_id, bool) or not isinstance(record_id, str | int) or record_id == "":
        raise UserError(f"{place}: id {_short(record_id)} must be text or a whole number: correct it or leave it out.")
    record_id = str(record_id)
    where = f"{place} (id {record_id!r})"
    for key in ("question", "question_type"):
        if not isinstance(raw.get(key), str) or not raw[key].strip():
            got = f"is {_short(raw[key])}" if key in raw else f"is missing{_found(key, raw)}"
            raise UserError(f"{where}: {key} {got}; every record needs it as text that is not empty.")
    if "answer" not in raw:
        raise UserError(f"{where}: answer is missing{_found('answer', raw)}; write null if the task needs none.")
    _check_lookalikes(raw, where)
    _check_misspelt(raw, where)
    _check_json(raw, where)
    record = {
        "id": record_id,
        "question_type": raw["question_type"],
        "question": raw["question"],
        "answer": raw["answer"],
        "images": _media_paths(raw, "image", where, data_root, on_bad_media),
        "videos": _media_paths(raw, "video", where, data_root, on_bad_media),
        "extra": {key: value for key, value in raw.items() if key not in FIELDS},
    }
    _check_modality(record, modality, where)
    return record


def _check_lookalikes(raw: dict, where: str) -> None:
    """Refuses another project's key for media: any if the record lacks its own, else only its plural or other case."""
    for key, value in raw.items():
        for right, wrong in MEDIA_LOOKALIKES.items():
            names = (right, f"{right}s") if right in raw else (right, *wrong)
            is_media = isinstance(value, str | list | dict)  # not a score such as "clip": 0.31
            if key != right and is_media and str(key).lower() in names:
                raise UserError(
                    f"{where}: the key {key!r} would be ignored: name it {right!r} (a path or a list of paths)."
                )


def _check_misspelt(raw: dict, where: str) -> None:
    """Refuses a slip in the key of an optional field that the record lacks, such as 'imgae'."""
    absent = [field for field in OPTIONAL if field not in raw]
    for key in raw.keys() - {*FIELDS, *OPTIONAL}:
        for field in absent:
            if _is_slip(str(key).lower(), field):
                raise UserError(
                    f"{where}: the key {key!r} is read by no part of the project: did you mean {field!r}? For data of "
                    "your own, choose a name that is less like it."
                )


def _is_slip(key: str, field: str) -> bool:
    """True if letters of `field` are swapped, or one is missing, doubled or wrong: 'imgae', 'vido', 'immage', 'vodeo'.

    Names of a dataset's own data, such as 'videoId', 'image_2' and 'thoughts', add other characters or words.
    """
    places = range(len(field))
    letters_missing = {field[:i] + field[i + 1 :] for i in places}
    letters_doubled = {field[: i + 1] + field[i:] for i in places}
    wrong = len(key) == len(field) and key.isalpha() and sum(map(str.__ne__, key, field)) == 1
    return sorted(key) == sorted(field) or key in letters_missing | letters_doubled or wrong


def _found(key: str, raw: dict) -> str:
    """What a record without this key has: a key that may be meant, and all keys."""
    meant = nearest(key, [str(name) for name in raw if name not in FIELDS])
    return f"{meant}, its keys are {', '.join(map(str, raw)) or 'none'}"


def _media_paths(raw: dict, key: str, where: str, data_root: Path, on_bad_media: str) -> list[str]:
    value = raw.get(key)
    paths = [] if value is None else value if isinstance(value, list) else [value]
    absolute = []
    for path in paths:
        if not isinstance(path, str) or not path:
            raise UserError(f"{where}: {key} {_short(value)} must be a path or a list of paths.")
        full = os.path.abspath(data_root / path)
        if on_bad_media == "error" and not os.path.isfile(full):
            kind = "is a folder" if os.path.isdir(full) else "does not exist"
            # Quoted, so that a space or line break at the end is visible.
            raise UserError(
                f"{where}: {key} {full!r} {kind}: correct the path, data_root or image_root, or set on_bad_media to "
                "skip; an address is not fetched."
            )
        absolute.append(full)
    return absolute


def _check_modality(record: dict, modality: str | None, where: str) -> None:
    has = {"image": bool(record["images"]), "video": bool(record["videos"])}
    wanted = {"image": modality == "image", "video": modality == "video"}
    if modality is not None and has != wanted:
        got = " and ".join(kind for kind in has if has[kind]) or "neither image nor video"
        raise UserError(
            f"{where}: data_modality is {modality!r} but the record has {got}: "
            "correct one of them, or leave data_modality out for a mixed file."
        )


def _check_json(raw: dict, where: str) -> None:
    """Records in memory may contain anything, and JSON allows lone surrogates, which cannot be written to files."""
    try:
        json.dumps(raw, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: the text holds half a surrogate pair: write the whole character.") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: the record is not JSON ({error}): use text, finite numbers, lists, null.") from error


def _loads(text: str):
    return json.loads(
        text, parse_constant=_refuse_constant, parse_float=_finite_float, object_pairs_hook=_without_duplicates
    )


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not a JSON number; use null or a finite number")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict:
    # JSON parsers keep only the last one, so one of two questions would be lost silently.
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {_short(twice)} occurs twice in one object")
    return found


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
