"""What a converter gives back for one record, and the sentence form of an instruction."""

from dataclasses import dataclass, field

from task.errors import UserError


@dataclass
class Converted:
    """A record, and what the check needs to know about it.

    record: as metadata/README.md describes it, its pictures relative to the run's image root.
    changes: what was altered or left out, a few words each; they are counted in the report.
    size: (width, height) that the source gives for the picture; another real size is refused.
    plane: (width, height) of the plane the answer's numbers live in, where they are no pixels: (1000, 1000) or (1, 1).
    """

    record: dict
    changes: list[str] = field(default_factory=list)
    size: tuple | None = None
    plane: tuple | None = None


def sentence(text: str) -> str:
    """An instruction as a sentence: a capital letter, and a full stop where no mark ends it.

    >>> sentence("reach for the carrot ")
    'Reach for the carrot.'
    """
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


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
