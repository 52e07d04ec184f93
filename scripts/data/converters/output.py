"""The files of a conversion: records, their manifests and the report; nothing of them is left where it fails."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from converters.ids import in_train
from task.errors import UserError

PARTS = ("train", "test")


def record_files(out: Path, split: float | None) -> list[Path]:
    """OUT itself, or with a split OUT_train and OUT_test."""
    return [out] if split is None else [out.with_name(f"{out.stem}_{part}{out.suffix}") for part in PARTS]


class Output:
    """Context in which records are added; unless `finish` is called in it, it leaves nothing behind.

    Records are first written beside their file, under a name that ends in .part.
    """

    def __init__(self, out: Path, split: float | None, pictures: Path):
        self.out, self.split, self.files = out, split, record_files(out, split)
        self.counts, self.media = [0] * len(self.files), [set() for _ in self.files]
        self._pictures = None if pictures.exists() else pictures
        self._folders = [folder for folder in (out.parent, *out.parent.parents) if not folder.exists()]
        self._unfinished = [file.with_name(f"{file.name}.part") for file in self.files]

    def __enter__(self):
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self._lines = [open(file, "w", encoding="utf-8") for file in self._unfinished]  # noqa: SIM115
        return self

    def add(self, record: dict) -> None:
        part = 0 if self.split is None or in_train(str(record["id"]), self.split) else 1
        self._lines[part].write(json.dumps(record, ensure_ascii=False) + "\n")
        self.counts[part] += 1
        for kind in ("image", "video"):
            media = record.get(kind)
            self.media[part].update(media if isinstance(media, list) else [] if media is None else [media])

    def finish(self, image_root: Path, report: dict) -> None:
        """Puts everything in its place. UserError if a split has left one of its parts empty."""
        if 0 in self.counts:
            raise UserError(
                f"--split {self.split:g} puts {self.counts[0]} records into train and {self.counts[1]} into test: give "
                "more records, or another share."
            )
        for lines in self._lines:
            lines.close()
        data_root = json.dumps(os.path.relpath(image_root, self.out.parent))
        for unfinished, file in zip(self._unfinished, self.files, strict=True):
            unfinished.rename(file)
            manifest = f"datasets:\n- json_path: {json.dumps(file.name)}\n  data_root: {data_root}\n"
            file.with_suffix(".yaml").write_text(manifest, encoding="utf-8")
        self.out.with_suffix(".report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        self._pictures, self._folders = None, []

    def print(self) -> None:
        for file, count in zip(self.files, self.counts, strict=True):
            print(f"{file.with_suffix('.yaml')}: {count} records")
        shared = len(set.intersection(*self.media)) if len(self.files) > 1 else 0
        if shared:
            print(f"warning: {shared} pictures or videos are in both parts, because a split is by record")

    def __exit__(self, *fault):
        for lines in self._lines:
            lines.close()
        for unfinished in self._unfinished:
            unfinished.unlink(missing_ok=True)
        if self._pictures is not None:
            shutil.rmtree(self._pictures, ignore_errors=True)
        for folder in self._folders:  # OUT's first, then those above it
            with suppress(OSError):  # another program has put something there
                folder.rmdir()
