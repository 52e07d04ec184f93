"""Ids of records that have none, and the part of a split that an id belongs to."""

import hashlib
import json
from collections import Counter
from pathlib import Path


def made_id(record: dict, source: Path, made: Counter, seen: set[str]) -> str:
    """An id made from what the record asks; it stays when other records come or go, or an answer is corrected.

    Args:
        made: counts the ids made so far, before equal ones are numbered; it is updated.
        seen: ids that are taken.
    """
    asked = [record.get(key) for key in ("question_type", "question", "image", "video")]
    name = f"{source.resolve().stem}-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:10]}"
    while True:
        made[name] += 1
        unique = name if made[name] == 1 else f"{name}-{made[name]}"
        if unique not in seen:
            return unique


def in_train(record_id: str, share: float) -> bool:
    """Whether a record belongs to the training part of a split. This depends only on its id, not on other records."""
    return int(hashlib.sha256(record_id.encode("utf-8", "surrogatepass")).hexdigest()[:12], 16) < share * 16**12
