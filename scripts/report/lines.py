"""Reads files that may still be written: incomplete and damaged content is skipped and counted."""

from __future__ import annotations

import json
import math
from pathlib import Path

LONGEST_LINE = 8 * 2**20  # characters; longer lines are not valid entries


def read_lines(path: Path) -> tuple[list[dict], int]:
    """The JSON objects of a .jsonl file, and the number of other lines; ([], 0) for a missing file."""
    entries, faults = [], 0
    try:
        source = path.open(encoding="utf-8", errors="replace", newline="\n")
    except OSError:
        return [], 0
    with source:
        for line in source:
            entry = _parsed(line) if len(line) < LONGEST_LINE else None
            if isinstance(entry, dict):
                entries.append(entry)
            elif line.endswith("\n") and line.strip():  # without a line break it is still being written
                faults += 1
    return entries, faults


def read_object(path: Path) -> dict:
    """The JSON object in a file; {} if the file is missing, incomplete or something else."""
    try:
        value = _parsed(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}
    return value if isinstance(value, dict) else {}


def number(value) -> float | None:
    """A finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def text(value, most: int) -> str:
    """Any value as text of at most `most` characters; None becomes ""."""
    if value is None:
        return ""
    try:
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        shown = str(value)
    return shown if len(shown) <= most else f"{shown[:most]} ... ({len(shown):,} characters)"


def size(value) -> list[float] | None:
    """(width, height) as a list of two numbers above 0, or None."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    numbers = [number(x) for x in value]
    return numbers if all(x is not None and 0 < x < 1e6 for x in numbers) else None


def _parsed(content: str):
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
