"""A question about the text in a picture, answered in a few words.

Data: TextVQA (CC BY 4.0), ST-VQA, DocVQA, OCR-VQA, ChartQA (see their pages for the pictures' terms), and any record
whose answer is a text, a number, or a list of references, any of which is right. A plain text is one reference.

Reward: ANLS (Biten et al., 2019), the maximum over the references of 1 - NL, where NL is the edit distance divided
by the longer length, and 0 if NL is 0.5 or more. A text that merely contains the answer, or lists all, does not score.

A list that contains an answer three times or more holds one answer per annotator (VQA, TextVQA, VizWiz) rather than
equivalent references. An answer given by n annotators then has the weight min(1, n / 3), as in VQA accuracy (Antol et
al., 2015): ANLS is multiplied by it, exact and relaxed match use only answers of weight 1, and `soft_accuracy` is the
weight of the answer that the prediction matches exactly.

Normalisation: leading, trailing and repeated white space is ignored, and so is case unless the record has
"case_sensitive": true. Exact match: equal after this, with quotes, brackets and sentence punctuation stripped at the
ends of words, unless nothing would be left (signs stay: -5 is not 5). Relaxed match (Masry et al., 2022): exact, or
both are numbers (a % sign or thousands commas allowed) and at most 5 % apart. Articles and number words are kept.
"""

import math
import re
from collections import Counter
from statistics import fmean

from task.errors import UserError
from task.parsing.answers import answer_text, compatible, normal_text, split_completion

MAX_CHARS = 2_000  # a longer text is not a short answer
ANLS_THRESHOLD = 0.5
RELAXED_TOLERANCE = 0.05
AGREEING = 3  # annotators for full weight
OPENING, CLOSING = "\"'([{", "\"')]}.,;:!?"
NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?%?|[-+]?\.[0-9]+%?")

TASK_CONFIG = {
    "task_type": "ocr-vqa",
    "grpo_template": (
        "{Question} First think inside <think> </think>, then give the answer in as few words as possible "
        "inside <answer> </answer>."
    ),
    "description": "a short text read from a picture, scored by edit distance to the nearest reference (ANLS)",
    "input_format": "one or more pictures and a question about the text in them",
    "output_format": "a few words, spelt as in the picture",
    "frame": "none",
}

SELF_TEST = {
    "record": {"question": "When does it open?", "answer": ["10:30 AM", "half past ten"]},
    "right": "<think>the sign says so</think><answer>10:30 am</answer>",
    "wrong": "<think>a guess</think><answer>never on Sundays</answer>",
}

METRICS = {
    **dict.fromkeys(("anls", "exact", "relaxed", "soft_accuracy"), "higher"),
    "parse_failure_rate": "lower",
}


def format_reward(completion, sol, **kw):
    """1.0 for exactly one thought and one answer block with 1 to 2,000 characters; else 0.0."""
    parts = split_completion(completion, kw.get("thought_end", "</think>"))
    return float(parts is not None and 0 < len(parts[1].strip()) <= MAX_CHARS)


def accuracy_reward(completion, sol, **kw):
    """(ANLS in [0, 1], {"exact", "relaxed", "parse_fail": 0 or 1, "soft_accuracy"}); None without a reference."""
    if sol is None:
        return None
    wanted, case = references(sol, kw.get("id")), _case_sensitive(kw)
    answer = parse_answer(completion, **kw)
    if answer is None:
        return 0.0, {"exact": 0, "relaxed": 0, "soft_accuracy": 0.0, "parse_fail": 1}
    logged = {name: float(MEASURES[name](answer, wanted, case)) for name in ("exact", "relaxed", "soft_accuracy")}
    return anls(answer, wanted, case), logged | {"parse_fail": 0}


def parse_answer(completion, **kw):
    """The answer as written, or None if there is none or it is too long."""
    answer = answer_text(completion, kw.get("thought_end", "</think>"))
    return answer if answer is not None and len(answer) <= MAX_CHARS else None


def compute_metrics(predictions, **kw):
    """anls, exact, relaxed, soft_accuracy and parse_failure_rate: means over the predictions that have a reference."""
    rows = [row for row in predictions if row["status"] != "load_error" and row["answer"] is not None]
    if not rows:
        return {}
    metrics = {}
    for name, measure in MEASURES.items():
        scores = [
            measure(row["prediction"], references(row["answer"], row["id"]), _case_sensitive(row))
            for row in rows
            if row["prediction"] is not None
        ]
        metrics[name] = sum(scores) / len(rows)
    return metrics | {"parse_failure_rate": fmean(row["prediction"] is None for row in rows)}


def references(answer, record_id=None) -> list[str]:
    """The references of a record; UserError if there is none or one is empty.

    >>> references("black"), references(["10:30 AM", 12])
    (['black'], ['10:30 AM', '12'])
    """
    given = answer if isinstance(answer, list) else [answer]
    wanted = [str(one) for one in given if isinstance(one, str | int | float)]
    if not wanted or len(wanted) < len(given) or not all(one.strip() for one in wanted):
        raise UserError(f"record {record_id}: answer {answer!r} must be a text or a list of texts, none of them empty.")
    return wanted


def weights(wanted: list[str], case_sensitive: bool = False) -> list[float]:
    """The weight of each reference: 1.0, or min(1, n / 3) for an annotator's answer that n annotators gave.

    >>> weights(["stop"] * 8 + ["unanswerable"])[-1], weights(["10:30 AM", "half past ten"])[-1]
    (0.3333333333333333, 1.0)
    """
    bare = [_without_punctuation(_comparable(one, case_sensitive)) for one in wanted]
    counts = Counter(bare)
    by_annotators = max(counts.values()) >= AGREEING
    return [min(1.0, counts[one] / AGREEING) if by_annotators else 1.0 for one in bare]


def anls(answer: str, wanted: list[str], case_sensitive: bool = False) -> float:
    """Average normalised Levenshtein similarity of one answer: the maximum over the references, each times its weight.

    >>> anls("10:30am", ["10:30 AM"])
    0.875
    """
    answer, counted = _comparable(answer, case_sensitive), weights(wanted, case_sensitive)
    return max(
        weight * _similarity(answer, _comparable(one, case_sensitive))
        for one, weight in zip(wanted, counted, strict=True)
    )


def soft_accuracy(answer: str, wanted: list[str], case_sensitive: bool = False) -> float:
    """The weight of the reference that the answer equals, ignoring punctuation at the ends of words; 0.0 for none."""
    bare = _without_punctuation(_comparable(answer, case_sensitive))
    counted = zip(wanted, weights(wanted, case_sensitive), strict=True)
    same = [weight for one, weight in counted if bare == _without_punctuation(_comparable(one, case_sensitive))]
    return max(same, default=0.0) if bare else 0.0


def exact_match(answer: str, wanted: list[str], case_sensitive: bool = False) -> bool:
    """Equal to a reference of weight 1, ignoring punctuation at the ends of words: "Black." is "black"."""
    return soft_accuracy(answer, wanted, case_sensitive) == 1.0


def relaxed_match(answer: str, wanted: list[str], case_sensitive: bool = False) -> bool:
    """An exact match, or a number at most 5 % away from a numeric reference of weight 1 (0 must be equal)."""
    counted = zip(wanted, weights(wanted, case_sensitive), strict=True)
    number, targets = _number(answer), [_number(one) for one, weight in counted if weight == 1.0]
    near = number is not None and any(
        target is not None and abs(number - target) <= RELAXED_TOLERANCE * abs(target) for target in targets
    )
    return near or exact_match(answer, wanted, case_sensitive)


MEASURES = {"anls": anls, "exact": exact_match, "relaxed": relaxed_match, "soft_accuracy": soft_accuracy}


def _similarity(a: str, b: str) -> float:
    longer = max(len(a), len(b))
    # The distance is at least the difference in length, so most wrong answers need no computation.
    if longer == 0 or abs(len(a) - len(b)) >= ANLS_THRESHOLD * longer:
        return 0.0
    distance = edit_distance(a, b) / longer
    return 1.0 - distance if distance < ANLS_THRESHOLD else 0.0


def edit_distance(a: str, b: str) -> int:
    """The minimum number of insertions, deletions and replacements that turns one text into the other (Levenshtein).

    Uses the bit vectors of Myers (1999) and Hyyrö (2003): one step per character of `b` handles all of `a`.

    >>> edit_distance("coca cola", "coca-cola"), edit_distance("kitten", "sitting")
    (1, 3)
    """
    if not a or not b:
        return len(a) or len(b)
    full, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    places: dict[str, int] = {}
    for place, char in enumerate(a):
        places[char] = places.get(char, 0) | 1 << place
    more, less, distance = full, 0, len(a)  # where the column's next entry is one more, or one less, than this one
    for char in b:
        equal = places.get(char, 0)
        diagonal = (((equal & more) + more) ^ more) | equal | less
        right_more, right_less = less | ~(diagonal | more) & full, more & diagonal
        distance += bool(right_more & last) - bool(right_less & last)
        right_more, right_less = (right_more << 1 | 1) & full, (right_less << 1) & full
        more, less = right_less | ~(diagonal | right_more) & full, right_more & diagonal
    return distance


def _case_sensitive(kw) -> bool:
    return bool(((kw.get("record") or {}).get("extra") or {}).get("case_sensitive"))


def _comparable(text: str, case_sensitive: bool) -> str:
    return " ".join(compatible(text).split()) if case_sensitive else normal_text(text)


def _without_punctuation(text: str) -> str:
    """The text without punctuation at the ends of words; the text itself if nothing would be left."""
    words = [word.lstrip(OPENING).rstrip(CLOSING) for word in text.split()]
    return " ".join(word for word in words if word) or text


def _number(text: str) -> float | None:
    text = text.strip().removeprefix("$").strip()
    if not NUMBER.fullmatch(text):
        return None
    number = float(text.removesuffix("%").replace(",", ""))
    return number if math.isfinite(number) else None
