"""Embedded thumbnails for a page: every picture once, within a size budget."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from dataset.media import load_image

BUDGET = 32 * 2**20  # characters of all thumbnails of a page
SIDES = ((150, 560), (600, 400), (1200, 288))  # (up to this many pictures, longest side in pixels)
SMALLEST_SIDE = 208
SMALL_PNG = 24 * 2**10  # bytes; drawings up to this size stay PNG, which is sharp
QUALITY = 80


class Thumbnails:
    """Thumbnails by path, cached for all pages of one process.

    >>> Thumbnails().add("no/such/picture.png", 200) is None
    True
    """

    def __init__(self):
        self._made: dict[tuple, str | None] = {}

    def add(self, path: str, side: int) -> str | None:
        """A data URL with the upright picture, its longest side at most `side` pixels; None if it cannot be read."""
        try:
            key = (path, Path(path).stat().st_mtime_ns, side)
        except (OSError, ValueError):
            return None
        if key not in self._made:
            self._made[key] = _data_url(path, side)
        return self._made[key]


class Pictures:
    """The pictures of one page.

    Attributes:
        blob: all data URLs as one text, so that a page with thousands of them parses quickly.
        places: (start, length) of each picture in `blob`.
        missing, over_budget: numbers of pictures that could not be read, and that did not fit.
    """

    def __init__(self, thumbnails: Thumbnails, expected: int, budget: int = BUDGET):
        self._thumbnails, self._budget = thumbnails, budget
        self._side = next((side for most, side in SIDES if expected <= most), SMALLEST_SIDE)
        self._index: dict[str, int | None] = {}
        self._parts: list[str] = []
        self.places: list[tuple[int, int]] = []
        self.missing = self.over_budget = self._length = 0

    @property
    def blob(self) -> str:
        return "".join(self._parts)

    def add(self, path) -> int | None:
        """Index of a picture in `places`; None if it is not shown."""
        if not isinstance(path, str):
            return None
        if path not in self._index:
            self._index[path] = self._added(path)
        return self._index[path]

    def _added(self, path: str) -> int | None:
        if self._length >= self._budget:
            self.over_budget += 1
            return None
        url = self._thumbnails.add(path, self._side)
        if url is None:
            self.missing += 1
            return None
        if self._length + len(url) > self._budget:
            self.over_budget += 1
            return None
        self.places.append((self._length, len(url)))
        self._parts.append(url)
        self._length += len(url)
        return len(self.places) - 1


def _data_url(path: str, side: int) -> str | None:
    try:
        picture = load_image(path)
    except (ValueError, OSError):  # a MediaError is a ValueError
        return None
    drawn = max(picture.size) <= side
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    if drawn and (content := _encoded(picture, "PNG", optimize=True)) and len(content) <= SMALL_PNG:
        kind = "png"
    else:
        kind, content = "jpeg", _encoded(picture, "JPEG", quality=QUALITY)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _encoded(picture: Image.Image, form: str, **settings) -> bytes:
    out = io.BytesIO()
    picture.save(out, form, **settings)
    return out.getvalue()
