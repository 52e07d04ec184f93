"""YAML manifest -> which record files to read, how much of each, and where their media are.

A record file given instead of a manifest counts as a manifest with one entry.

A manifest:

    datasets:
      - json_path: train.jsonl          # .json (a list), .jsonl or .parquet
        sampling_strategy: random:20%   # all | first:N | end:N | random:N, N a number of records or a share with %
        data_root: pictures             # where relative media paths start; default: the folder of json_path
        data_modality: image            # text | image | video; leave it out for mixed files

A relative json_path or data_root is resolved from the manifest's folder; if nothing exists there, from the working
folder or the checkout.
"""

from __future__ import annotations

import difflib
import filecmp
import math
import os
import random
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from dataset.unique_keys import UniqueKeyLoader
from task.errors import UserError

CHECKOUT = Path(__file__).resolve().parents[1]
RECORD_FILES = (".json", ".jsonl", ".parquet")
KEYS = ("json_path", "sampling_strategy", "data_root", "data_modality")
MODALITIES = ("text", "image", "video")
STARTS = "relative paths start from the manifest's folder, else from the working folder or the checkout"
STRATEGY = re.compile(r"(first|end|random):(\d+|\d+(?:\.\d+)?%)")


@dataclass(frozen=True)
class Source:
    """One entry of a manifest, its paths absolute. `modality` None: any mix."""

    path: Path
    strategy: str
    data_root: Path
    modality: str | None
    place: str


def read_manifests(paths: str | os.PathLike | list, image_root: str | os.PathLike | None = None) -> list[Source]:
    """The sources of one or several manifests, in order. `image_root`, if given, replaces every data_root.

    Raises:
        UserError: one sentence with the file, the entry, the rule and the way out.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if image_root is not None and not os.path.isdir(image_root):
        raise UserError(
            f"image_root {str(image_root)!r} is not a folder: give the folder that relative media paths start from."
        )
    return [source for path in paths for source in _read_manifest(_absolute(path, Path.cwd()), image_root)]


def print_sources(sources: list[Source]) -> None:
    """One line per entry: the record file, the part of it, and the folder that its media paths start from."""
    for source in sources:
        print(f"records {source.path} ({source.strategy}), media from {source.data_root}")


def sample(records: list, strategy: str, place: str, seed_text: str) -> list:
    """The part of `records` that a sampling_strategy selects, in file order.

    A share is rounded up, so a share of a nonempty file is never empty. `random` depends on `seed_text` only.

    >>> sample(list("abcdef"), "end:40%", "here", "")
    ['d', 'e', 'f']
    """
    if strategy == "all":
        return records
    which, amount = STRATEGY.fullmatch(strategy).groups()
    # round() first: 7% of 100 must not become 8 because 0.07 * 100 is slightly above 7 in floating point.
    if amount.endswith("%"):
        count = max(math.ceil(round(float(amount[:-1]) * len(records) / 100, 6)), min(len(records), 1))
    else:
        count = int(amount)
    if count > len(records):
        raise UserError(
            f"{place}: sampling_strategy {strategy!r} asks for {count} records but the file has {len(records)}: "
            "ask for fewer, or use 'all'."
        )
    if which == "random":
        chosen = sorted(random.Random(seed_text).sample(range(len(records)), count))
        return [records[i] for i in chosen]
    return records[:count] if which == "first" else records[len(records) - count :]


def nearest(name: str, known) -> str:
    """' (did you mean X?)' if a known name is close, else ''."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _read_manifest(path: Path, image_root) -> list[Source]:
    if not os.path.isfile(path):
        fault = "is a folder" if os.path.isdir(path) else "does not exist"
        raise UserError(
            f"manifest {path} {fault}: give the path of a YAML file with a `datasets:` list, or of a record file."
        )
    if path.suffix in RECORD_FILES:
        root = path.parent if image_root is None else _absolute(image_root, Path.cwd())
        return [Source(path, "all", root, None, str(path))]
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), Loader=UniqueKeyLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(
            f"manifest {path} is not valid YAML ({' '.join(str(error).split())}): correct it there."
        ) from error
    if not isinstance(content, dict) or set(content) != {"datasets"}:
        got = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise UserError(
            f"manifest {path} must have exactly one top key, `datasets:`, but has {got}: move the entries under it."
        )
    entries = content["datasets"]
    if not isinstance(entries, list) or not entries:
        raise UserError(f"manifest {path}: `datasets:` must be a list of at least one entry (`- json_path: ...`).")
    return [
        _read_entry(entry, f"manifest {path}, entry {n}", path.parent, image_root) for n, entry in enumerate(entries, 1)
    ]


def _read_entry(entry, place: str, folder: Path, image_root) -> Source:
    if not isinstance(entry, dict) or not isinstance(entry.get("json_path"), str):
        raise UserError(f"{place} has no json_path: write `- json_path: FILE.json`.")
    for key, value in entry.items():
        if key not in KEYS:
            raise UserError(
                f"{place} has the unknown key {key!r}{nearest(str(key), KEYS)}: known keys are {', '.join(KEYS)}."
            )
        if not isinstance(value, str):
            raise UserError(f"{place}: {key} must be text, not {value!r}: correct it or leave the key out.")
    path = _located(entry["json_path"], folder, f"{place}: json_path")
    if path.suffix not in RECORD_FILES:
        raise UserError(
            f"{place}: json_path {entry['json_path']!r} must end in .json (a list), .jsonl (one record per line) or "
            ".parquet."
        )
    if not os.path.isfile(path):
        raise UserError(f"{place}: json_path {path} does not exist: {STARTS}.")
    strategy = entry.get("sampling_strategy", "all")
    _check_strategy(strategy, place)
    modality = entry.get("data_modality")
    if modality is not None and modality not in MODALITIES:
        raise UserError(
            f"{place}: data_modality {modality!r} is not one of {', '.join(MODALITIES)}"
            f"{nearest(modality, MODALITIES)}: name one, or leave it out for a mixed file."
        )
    if image_root is not None:
        root = _absolute(image_root, Path.cwd())
    else:
        root = _located(entry["data_root"], folder, f"{place}: data_root") if "data_root" in entry else path.parent
    if not os.path.isdir(root):
        raise UserError(f"{place}: data_root {root} is not a folder: {STARTS}.")
    return Source(path, strategy, root, modality, place)


def _located(text: str, folder: Path, what: str) -> Path:
    """The path below the manifest's folder; if nothing exists there, below the working folder or the checkout.

    UserError if these two contain different files or folders of that name.
    """
    own = _absolute(text, folder)
    if os.path.exists(own):
        return own
    found = [path for start in (Path.cwd(), CHECKOUT) if os.path.exists(path := _absolute(text, start))]
    if len(found) == 2 and not _same(*found):
        raise UserError(f"{what} {text!r} may be {found[0]} or {found[1]}, which differ: write the whole path.")
    return found[0] if found else own


def _same(first: Path, second: Path) -> bool:
    both_files = first.is_file() and second.is_file()
    return first.samefile(second) or (both_files and filecmp.cmp(first, second, shallow=False))


def _check_strategy(strategy: str, place: str) -> None:
    match = STRATEGY.fullmatch(strategy)
    amount = float(match[2].rstrip("%")) if match else 0
    if strategy != "all" and (amount == 0 or (match[2].endswith("%") and amount > 100)):
        raise UserError(
            f"{place}: sampling_strategy {strategy!r} must be all, first:N, end:N or random:N, "
            "N a number of records from 1 or a share from above 0% to 100% (random:20%)."
        )


def _absolute(path: str | os.PathLike, folder: Path) -> Path:
    # abspath, not resolve(): symbolic links stay as the user named them.
    return Path(os.path.abspath(folder / Path(path).expanduser()))
