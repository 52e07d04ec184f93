"""Open-domain questions for search agents: NQ, HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle.

Each is read in the format of its own release and in the repacked one, {"id", "question", "golden_answers", "metadata"}.
The answer is a list of texts, any of which is right. If the source has them, a record gets `hops`, the titles that must
be found (`supporting_titles`) and their sentences (`supporting_facts`); passages are left to the retriever.
"""

import csv
from itertools import zip_longest

from converters.converted import Converted, others, text
from converters.sources import read_json
from converters.tables import table_rows
from task.errors import UserError

ANSWERS = ("golden_answers", "answers", "answer", "Answer")
HOPS = {"compositional": 2, "inference": 2, "comparison": 2, "bridge_comparison": 4}  # of 2WikiMultihopQA's types
KNOWN = (  # used for the record, or passages
    "_id", "Question", "metadata", "supporting_facts", "context", "evidences", "paragraphs", "question_decomposition",
    "answer_aliases", "answerable", *ANSWERS,
)  # fmt: skip
LOST = "supporting fact that the context lacks left out"


def read_questions(source, options):
    """(place, raw) of .json, .jsonl, .csv with a header line, .parquet, or a folder of .parquet files."""
    if source.suffix == ".csv":
        return _read_csv(source)
    if source.is_dir() or source.suffix == ".parquet":
        return table_rows(source, options)[0]
    return read_json(source, options)


def nq(raw, options):
    return [_converted(raw, hops=1)]


def bamboogle(raw, options):
    return [_converted(raw, hops=2)]


def hotpotqa(raw, options):
    raw = _flat(raw)
    titles, facts, changes = _support(raw)
    found = {"supporting_titles": titles, "supporting_facts": facts}
    found |= {"type": raw.get("type"), "level": raw.get("level")}
    return [_converted(raw, hops=2, changes=changes, **found)]


def two_wiki(raw, options):
    """An evidence is a (subject, relation, object) that the answer depends on, so there is one per hop."""
    raw = _flat(raw)
    titles, facts, changes = _support(raw)
    evidences = raw.get("evidences")
    hops = len(evidences) if isinstance(evidences, list) and evidences else HOPS.get(raw.get("type"))
    found = {"supporting_titles": titles, "supporting_facts": facts, "type": raw.get("type")}
    return [_converted(raw, hops=hops, changes=changes, **found)]


def musique(raw, options):
    raw = _flat(raw)
    if raw.get("answerable") is False:
        raise UserError("answerable is false: the full set's questions without an answer are not for training")
    steps = raw.get("question_decomposition")
    hops = len(steps) if isinstance(steps, list) and steps else _hops_of_id(raw.get("id"))
    support = [one for one in raw.get("paragraphs") or [] if one.get("is_supporting")]
    found = {"supporting_titles": list(dict.fromkeys(one["title"] for one in support))}
    found["supporting_facts"] = [one["paragraph_text"] for one in support]
    return [_converted(raw, hops=hops, more_answers=raw.get("answer_aliases"), **found)]


def _converted(raw, hops, changes=(), more_answers=None, **found) -> Converted:
    """The record, with the values of `found` that are not empty."""
    raw = _flat(raw)
    record = {"question": text(raw, "question", "Question"), "question_type": "search_qa"}
    answers = next((raw[key] for key in ANSWERS if raw.get(key) is not None), None)
    record["answer"] = golds(answers, more_answers)
    identity = next((raw[key] for key in ("_id", "id") if raw.get(key) is not None), None)
    record |= {} if identity is None else {"id": str(identity)}
    record |= {key: value for key, value in ({"hops": hops} | found).items() if value}
    return Converted(record, list(changes), rest=others(raw, *KNOWN, *record))


def golds(answers, more=None) -> list[str]:
    """The acceptable answers of a text or a list of texts, without duplicates. UserError if there is none.

    >>> golds("Paris ", ["Paris", "Paris, France"])
    ['Paris', 'Paris, France']
    """
    listed = [*_listed(answers), *_listed(more)]
    if not all(isinstance(one, str) for one in listed):
        raise UserError(f"the answer is {answers!r:.60}, not a text or a list of texts")
    kept = list(dict.fromkeys(one.strip() for one in listed if one.strip()))
    if not kept:
        raise UserError(f"there is no answer in {', '.join(ANSWERS)}: test sets without answers cannot be used")
    return kept


def _listed(value) -> list:
    return [] if value is None else value if isinstance(value, list) else [value]


def _flat(raw) -> dict:
    """The raw record; the repacked format keeps the source's own fields in `metadata`."""
    if not isinstance(raw, dict):
        raise UserError(f"the record is of type {type(raw).__name__}, not an object")
    return (raw["metadata"] | raw) if isinstance(raw.get("metadata"), dict) else raw


def _support(raw) -> tuple[list[str], list[str], list[str]]:
    """(titles, sentences, changes) of [[title, sentence number], ...] and [[title, sentences], ...], or by columns."""
    wanted = _pairs(raw.get("supporting_facts"), "title", "sent_id")
    sentences = dict(_pairs(raw.get("context"), "title", "sentences"))
    facts, changes = [], []
    for title, number in wanted:
        if title in sentences and 0 <= number < len(sentences[title]):
            facts.append(sentences[title][number].strip())
        elif sentences:
            changes.append(LOST)
    return list(dict.fromkeys(title for title, _ in wanted)), facts, changes


def _pairs(value, first: str, second: str) -> list[tuple]:
    if isinstance(value, dict):
        value = list(zip_longest(value[first], value.get(second, value.get("content", []))))
    return [(one[0], one[1]) for one in value or []]


def _hops_of_id(identity) -> int | None:
    """MuSiQue's ids begin with the number of hops: "3hop1__..."."""
    count = str(identity).partition("hop")[0]
    return int(count) if count.isdecimal() and "hop" in str(identity) else None


def _read_csv(source):
    with open(source, encoding="utf-8-sig", newline="") as lines:
        rows = csv.DictReader(lines)
        if not {"question", "Question"} & set(rows.fieldnames or []):
            raise UserError(f"{source} has no column Question in its first line: give the file as it was published.")
        yield from ((f"{source} line {rows.line_num}", row) for row in rows)
