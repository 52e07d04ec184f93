"""A mathematical question with one answer, as text or with a picture.

Data: GSM8K (MIT), MATH (MIT), DAPO-Math, Geometry3K, MathVista and the like (see their pages), and any record whose
answer is a number, LaTeX, a choice letter, or a list of texts, any of which is right.

Reward: 1.0 if the answer equals the record's, else 0.0. Equality, in this order: a choice letter (A to J) by letter;
a gold answer in words by text; two times of day (9:00) by hour and minute; two plain numbers exactly; everything else
by math-verify (Kydlicek et al., Apache-2.0; extra `math`) in a process that can be killed, with the corrections
described in task/runners/math_judge.py. The limits per answer are 1 s of CPU time and 10 s of wall-clock time; beyond
them it scores 0 and counts as `timeout`. If the verifier itself fails, the reward abstains (None) and counts
`verifier_lost`, so that this never counts as a wrong answer. A division by zero is not an answer.

The answer may be in \\boxed{}; two boxes with different contents are not an answer. "5 or 6" is not 5. 60% equals
0.6, and also 60 if the record says 60. Units are ignored, and so is the kind of bracket in (1, 2) and {1, 2}.
"""

import re
from statistics import fmean

from task.errors import UserError
from task.parsing.answers import answer_text, split_completion
from task.parsing.math_text import FUNCTIONS, latex, same_plain_number, same_time, without_percent
from task.parsing.text import boxed_text, parse_choice, plain_words, same_words
from task.runners.judge import Judge, Verdict
from task.runners.optional import need

MAX_CHARS = 400  # a longer text is not a final answer
CHOICE = re.compile(r"\(?([A-J])\)?")
# Words: three or more letters that are not a LaTeX command, environment or function, nor the "and" of a list ("9 and
# 10"), and so not a product of variables.
WORDS = re.compile(
    r"(?<![\\A-Za-z])(?<!\\begin\{)(?<!\\end\{)"
    rf"(?!(?:{FUNCTIONS}|sqrt|frac|max|min|gcd|lcm|mod|and)(?![A-Za-z]))[A-Za-z]{{3,}}"
)
VERIFIER = Judge("math_judge")

TASK_CONFIG = {
    "task_type": "math-reasoning",
    "grpo_template": (
        "{Question} First think inside <think> </think>, then give only the final answer inside <answer> </answer>."
    ),
    "description": "a mathematical question with one answer, compared as mathematics",
    "input_format": "a question, with or without pictures",
    "output_format": "a number, an expression in LaTeX or plain text, or a choice letter; \\boxed{} is allowed",
    "frame": "none",
}

SELF_TEST = {
    "record": {"answer": "\\frac{1}{3}"},
    "right": "<think>one of three</think><answer>\\boxed{2/6}</answer>",
    "wrong": "<think>one of two</think><answer>0.3</answer>",
}

METRICS = {"parse_failure_rate": "lower"}


def format_reward(completion, sol, **kw):
    """1.0 for exactly one thought and one answer block that contains an answer; else 0.0."""
    parts = split_completion(completion, kw.get("thought_end", "</think>"))
    return float(parts is not None and _final(parts[1]) is not None)


def accuracy_reward(completion, sol, **kw):
    """(0.0 or 1.0, {"parse_fail", "timeout": 0 or 1}); None without a true answer, or if the verifier failed."""
    if sol is None:
        return None
    golds = _golds(sol, kw.get("id"))
    answer = parse_answer(completion, **kw)
    if answer is None:
        return 0.0, {"parse_fail": 1, "timeout": 0}
    outcomes = []
    for gold in golds:
        outcomes.append(compare(answer, gold, kw.get("id")))
        if outcomes[-1] == "equal":
            return 1.0, {"parse_fail": 0, "timeout": 0}
    if "lost" in outcomes:
        return None, {"verifier_lost": 1}
    unread = all(outcome == "no answer" for outcome in outcomes)
    return 0.0, {"parse_fail": int(unread), "timeout": int("timeout" in outcomes)}


def parse_answer(completion, **kw):
    """The final answer as written, taken out of its \\boxed{}, or None."""
    return _final(answer_text(completion, kw.get("thought_end", "</think>")))


def compute_metrics(predictions, **kw):
    """parse_failure_rate, and boxed_share: the share of completions with \\boxed{}."""
    rows = [row for row in predictions if row["status"] != "load_error" and row["answer"] is not None]
    if not rows:
        return {}
    return {
        "parse_failure_rate": fmean(row["prediction"] is None for row in rows),
        "boxed_share": fmean("\\boxed" in (row["completion"] or "") for row in rows),
    }


def compare(answer: str, gold: str, record_id=None) -> str:
    """One of "equal", "different", "no answer" (unreadable), "timeout" or "lost" (the verifier failed).

    Raises:
        UserError: the gold answer cannot be read.
        MissingPackage: math-verify is needed and not installed.
    """
    if choice := CHOICE.fullmatch(plain_words(gold)):
        return _outcome(parse_choice(answer) == choice[1])
    words, formula = plain_words(gold), plain_words(gold, "")
    if not formula or WORDS.search(words):
        if same_words(plain_words(answer), words):
            return "equal"
        if not formula or WORDS.search(formula):
            return "different"
    if (same := same_time(answer, gold)) is not None:
        return _outcome(same)
    written, wanted = latex(answer), latex(gold)
    same = written == wanted != "" or same_plain_number(written, wanted)
    if same is not None:
        return _outcome(same)
    need("math_verify", "math")
    verdict = _verdict(wanted, written)
    if verdict.status != "ok":
        return "timeout" if verdict.status == "limit" else "lost"
    if verdict.value == "no gold":
        raise UserError(f"record {record_id}: the answer {gold!r} cannot be read as mathematics: correct it.")
    return verdict.value if isinstance(verdict.value, str) else _outcome(verdict.value)


def _verdict(wanted: str, written: str) -> Verdict:
    """The verifier's verdict. A percentage equals a number without the sign with or without the division by 100."""
    (gold, gold_percent), (answer, answer_percent) = map(without_percent, (wanted, written))
    verdict = VERIFIER.ask(gold, answer)
    if gold_percent == answer_percent or verdict.status != "ok" or verdict.value is not False:
        return verdict
    gold, answer = (
        f"({text})/100" if percent else text for text, percent in ((gold, gold_percent), (answer, answer_percent))
    )
    return VERIFIER.ask(gold, answer)


def _outcome(same: bool) -> str:
    return "equal" if same else "different"


def _final(text: str | None) -> str | None:
    text = boxed_text(text)
    return text if text is not None and len(text) <= MAX_CHARS else None


def _golds(sol, record_id) -> list[str]:
    golds = sol if isinstance(sol, list) else [sol]
    texts = [str(gold).strip() for gold in golds if isinstance(gold, str | int | float) and not isinstance(gold, bool)]
    if len(texts) != len(golds) or not golds or not all(texts):
        raise UserError(
            f"record {record_id}: the answer must be a number, a text, or a list of them, got {sol!r}: correct it."
        )
    return [boxed_text(text) or text for text in texts]
