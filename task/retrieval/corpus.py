"""A corpus file: one JSON object per line, {"id", "title", "text"}, validated strictly and read by byte position.

A corpus folder holds the file under the name CORPUS; scripts/retrieval/build_corpus.py makes one from other formats.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from task.errors import UserError

CORPUS = "corpus.jsonl"
POSITIONS = "positions.npy"
WAY_OUT = "scripts/retrieval/build_corpus.py makes a clean corpus and reports every faulty line."


def corpus_file(path: Path) -> Path:
    """The corpus file of a folder, or the file itself. UserError if there is none."""
    file = path / CORPUS if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"there is no corpus at {file}: give a folder with a {CORPUS}, or a .jsonl file of documents.")
    if file.suffix != ".jsonl":
        raise UserError(f"the corpus {file} must be a .jsonl file: {WAY_OUT}")
    return file


def sha256_of(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def read_document(line: bytes | str) -> dict:
    """{"id", "title", "text"} of one line of a corpus; the title may be missing. UserError that names the fault."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise UserError(f"of type {type(raw).__name__}, not an object")
    return checked(raw.get("id"), raw.get("title", ""), raw.get("text"))


def checked(identity, title, text) -> dict:
    """The document of these parts; an integer id becomes a text. UserError that names the fault."""
    if isinstance(identity, int) and not isinstance(identity, bool):
        identity = str(identity)
    document = {"id": identity, "title": title, "text": text}
    for key, value in document.items():
        if not isinstance(value, str) or (key != "title" and not value.strip()):
            raise UserError(f"{key} is {value!r:.60}, not a text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{key} holds half a surrogate pair") from error
    return document


def read_documents(file: Path) -> Iterator[tuple[int, dict]]:
    """(byte position, document) of every line. UserError with the line number of the first fault."""
    position, first_line = 0, {}
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                document = read_document(line)
                earlier = first_line.setdefault(document["id"], number)
                if earlier != number:
                    raise UserError(f"its id {document['id']!r} is line {earlier}'s already")
            except UserError as error:
                raise UserError(f"{file} line {number}: {error}. {WAY_OUT}") from error
            yield position, document
            position += len(line)
    if not first_line:
        raise UserError(f"the corpus {file} holds no document: give one with at least one line.")


def save_positions(folder: Path, positions: list[int]) -> None:
    """Stores the byte positions of a corpus's lines in its index folder, for Documents."""
    import numpy

    numpy.save(folder / POSITIONS, numpy.array(positions, dtype=numpy.int64))


class Documents:
    """The documents of a corpus file by number, read from disk on access."""

    def __init__(self, file: Path, folder: Path):
        """`folder` is the index folder of the file, with the positions stored by save_positions."""
        import numpy

        self._positions = numpy.load(folder / POSITIONS, mmap_mode="r")
        self._content = open(file, "rb")  # noqa: SIM115 (open as long as this object lives)
        self._size = file.stat().st_size

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, number: int) -> dict:
        start = int(self._positions[number])
        end = int(self._positions[number + 1]) if number + 1 < len(self) else self._size
        return read_document(os.pread(self._content.fileno(), end - start, start))  # pread is thread-safe
