"""The result of converting one record, and helpers for converters."""

from dataclasses import dataclass, field

from dataset.records import MEDIA_LOOKALIKES
from task.errors import UserError
from task.parsing.answers import ANSWER_START, answer_text, thought_tags


@dataclass
class Converted:
    """A record, and the information that its check needs.

    record: as metadata/README.md describes it, with picture paths relative to the run's image root.
    changes: what was changed or left out, in a few words each; counted in the report.
    size: (width, height) that the source states for the picture; a picture of another size is refused.
    plane: (width, height) of the plane of the answer's coordinates if they are not pixels: (1000, 1000) or (1, 1).
    rest: fields of the source that the converter does not know; they are copied to the record and counted.
    """

    record: dict
    changes: list[str] = field(default_factory=list)
    size: tuple | None = None
    plane: tuple | None = None
    rest: dict = field(default_factory=dict)


def sentence(text: str) -> str:
    """An instruction as a sentence: a capital letter, and a full stop if no punctuation ends it.

    >>> sentence("reach for the carrot ")
    'Reach for the carrot.'
    """
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def others(raw: dict, *known: str) -> dict:
    """The non-null fields of a source record, except the known ones."""
    return {key: value for key, value in raw.items() if isinstance(key, str) and key not in known and value is not None}


def media(raw: dict) -> tuple[dict, list[str]]:
    """({"image": ..., "video": ...} of a source record, changes), under whatever names the source has them.

    UserError if several names give different media.
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


def written_parts(written: str, changes: list[str]) -> tuple[str | None, str]:
    """(thought, answer) of a reply, without their tags; None for a thought that is missing or blank.

    UserError for answer tags that do not enclose a single answer, and for a thought that is opened and not closed.

    >>> written_parts("<think>It is red.</think> STOP", [])
    ('It is red.', 'STOP')
    """
    opening, closing = thought_tags()
    before, closed, after = written.rpartition(closing)
    if ANSWER_START in written:
        answer = answer_text(written)
        if answer is None:
            raise UserError("the answer is not one block of <answer> </answer> after the thought")
        changes.append("answer tags removed")
    elif not closed and opening in written:
        raise UserError(f"the thought is opened by {opening}, but not closed by {closing}")
    else:
        answer = after.strip() if closed else written
    return (thought_text(before.partition(opening)[2] if opening in before else before, changes), answer)


def thought_text(thought, changes: list[str]) -> str | None:
    """A thought without its tags, None if it is blank. UserError if it is not a text, or holds a tag inside."""
    if not isinstance(thought, str):
        raise UserError(f"the thought is of type {type(thought).__name__}, not a text")
    opening, closing = thought_tags()
    text = thought.strip()
    bare = text.removeprefix(opening).removesuffix(closing).strip()
    if opening in bare or closing in bare:
        raise UserError(f"the thought holds {opening} or {closing}: take the tags out")
    if bare and bare != text:
        changes.append("thought tags removed")
    return bare or None


def need(raw: dict, *keys: str):
    """The value of the first of the keys that is present; UserError if none is."""
    if not isinstance(raw, dict):
        raise UserError(f"the record is of type {type(raw).__name__}, not an object")
    for key in keys:
        if raw.get(key) is not None:
            return raw[key]
    raise UserError(f"there is no {' or '.join(keys)} (its keys are {', '.join(map(str, raw)) or 'none'})")


def text(raw: dict, *keys: str) -> str:
    """`need`, as a text that is not empty."""
    value = need(raw, *keys)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{' or '.join(keys)} is {value!r:.60}, not a text")
    return value
