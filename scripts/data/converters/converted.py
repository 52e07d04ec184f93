"""What a converter gives back for one record, and the sentence form of an instruction."""

from dataclasses import dataclass, field

from dataset.records import MEDIA_LOOKALIKES
from task.errors import UserError
from task.parsing.answers import ANSWER_START, answer_text


@dataclass
class Converted:
    """A record, and what the check needs to know about it.

    record: as metadata/README.md describes it, its pictures relative to the run's image root.
    changes: what was altered or left out, a few words each; they are counted in the report.
    size: (width, height) that the source gives for the picture; another real size is refused.
    plane: (width, height) of the plane the answer's numbers live in, where they are no pixels: (1000, 1000) or (1, 1).
    rest: the source's fields that the converter does not know; they are carried over into the record and counted.
    """

    record: dict
    changes: list[str] = field(default_factory=list)
    size: tuple | None = None
    plane: tuple | None = None
    rest: dict = field(default_factory=dict)


def sentence(text: str) -> str:
    """An instruction as a sentence: a capital letter, and a full stop where no mark ends it.

    >>> sentence("reach for the carrot ")
    'Reach for the carrot.'
    """
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def others(raw: dict, *known: str) -> dict:
    """The fields of a source record that hold something, less the known ones."""
    return {key: value for key, value in raw.items() if isinstance(key, str) and key not in known and value is not None}


def media(raw: dict) -> tuple[dict, list[str]]:
    """({"image": ..., "video": ...} of a source record, changes), whatever the source calls them.

    UserError where several names give different media.
    """
    found, changes = {}, []
    for kind, names in MEDIA_LOOKALIKES.items():
        given = {key: raw[key] for key in raw if str(key).lower() in (kind, *names)}
        given = {key: value for key, value in given.items() if value not in (None, [])}
        if any(value != next(iter(given.values())) for value in given.values()):
            raise UserError(f"{' and '.join(given)} name different media: keep one of them")
        if given:
            found[kind] = next(iter(given.values()))
        changes += [f"key {key} named {kind}" for key in given if key != kind]
    return found, changes


def media_keys(raw: dict) -> list[str]:
    """The keys of a source record that `media` reads."""
    names = {name for kind, others in MEDIA_LOOKALIKES.items() for name in (kind, *others)}
    return [key for key in raw if str(key).lower() in names]


def untagged(written: str, changes: list[str]) -> str:
    """The text of the one answer block, where there are tags. UserError for tags that hold no single answer."""
    if ANSWER_START not in written:
        return written
    answer = answer_text(written)
    if answer is None:
        raise UserError("the answer is not one block of <answer> </answer> after the thought")
    changes.append("answer taken out of its tags")
    return answer


def need(raw: dict, *keys: str):
    """The value of the first of the keys that is there; UserError when none is."""
    if not isinstance(raw, dict):
        raise UserError(f"the record is of type {type(raw).__name__}, not an object")
    for key in keys:
        if raw.get(key) is not None:
            return raw[key]
    raise UserError(f"there is no {' or '.join(keys)}")


def text(raw: dict, *keys: str) -> str:
    """`need`, as a text that is not empty."""
    value = need(raw, *keys)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{' or '.join(keys)} is {value!r:.60}, not a text")
    return value
