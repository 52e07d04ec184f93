"""Puzzles in words with an answer that a program can check: reasoning-gym's hundred generators.

Data: made by reasoning-gym (Stojanovski et al., 2025, arXiv 2505.24760; Apache-2.0; extra `reasoning`) at any
difficulty: scripts/demo/make_text_records.py. A record's answer is {"dataset": name of the generator, "entry":
{"question", "answer", "metadata"}}, the entry as it was generated.

Reward: the generator's own verifier, 0 to 1; many give a wrong answer in good form 0.01, and some give part of it for
part of the answer. It runs in a process that can be killed: 1 s of processor time and 10 s of the clock an answer, over
that 0 and `timeout`. When the verifier itself fails, the reward abstains (None) and counts `verifier_lost`.
The content of \\boxed{} is what it is asked about: the box would count as a part of the answer.
"""

from statistics import fmean

from task.errors import UserError
from task.parsing.answers import answer_text, split_completion
from task.parsing.text import boxed_text
from task.runners.judge import Judge
from task.runners.optional import need

MAX_CHARS = 4_000  # grids are long
VERIFIER = Judge("reasoning_judge")

TASK_CONFIG = {
    "task_type": "reasoning-gym",
    "grpo_template": (
        "{Question}\n\nFirst think inside <think> </think>, then give only the answer inside <answer> </answer>."
    ),
    "description": "a puzzle in words, scored by its generator's own verifier",
    "input_format": "a puzzle in words",
    "output_format": "what the puzzle asks for",
    "frame": "none",
}

SELF_TEST = {
    "record": {
        "answer": {"dataset": "chain_sum", "entry": {"question": "4 + 3 = ?", "answer": "7", "metadata": {}}},
    },
    "right": "<think>3 more than 4</think><answer>7</answer>",
    "wrong": "<think>3 less than 4</think><answer>1</answer>",
}

METRICS = {"solved": "higher", "*_score": "higher", "parse_failure_rate": "lower"}


def format_reward(completion, sol, **kw):
    """1.0 for exactly one thought and one answer block with 1 to 4,000 characters; else 0.0."""
    parts = split_completion(completion, kw.get("thought_end", "</think>"))
    return float(parts is not None and 0 < len(parts[1].strip()) <= MAX_CHARS)


def accuracy_reward(completion, sol, **kw):
    """(score in [0, 1], {"parse_fail", "timeout": 0 or 1}); None without a puzzle, or when the verifier failed."""
    if sol is None:
        return None
    dataset, entry = _puzzle(sol, kw.get("id"))
    answer = parse_answer(completion, **kw)
    if answer is None:
        return 0.0, {"parse_fail": 1, "timeout": 0}
    need("reasoning_gym", "reasoning")
    verdict = VERIFIER.ask(dataset, entry, answer)
    if verdict.status == "limit":
        return 0.0, {"parse_fail": 0, "timeout": 1}
    if verdict.status == "lost":
        return None, {"verifier_lost": 1}
    if verdict.value == "no gold":
        raise UserError(f"record {kw.get('id')}: the verifier of {dataset!r} cannot read the entry: make it anew.")
    return min(max(verdict.value, 0.0), 1.0), {"parse_fail": 0, "timeout": 0}


def parse_answer(completion, **kw):
    """The answer, out of its \\boxed{}, or None when there is none or it is too long."""
    answer = boxed_text(answer_text(completion, kw.get("thought_end", "</think>")))
    return answer if answer is not None and len(answer) <= MAX_CHARS else None


def compute_metrics(predictions, **kw):
    """parse_failure_rate, solved (share scored 0.99 or more), and the mean score of each generator, DATASET_score."""
    rows = [row for row in predictions if row["status"] != "load_error" and row["answer"] is not None]
    if not rows:
        return {}
    by_dataset: dict[str, list[float]] = {}
    for row in rows:
        by_dataset.setdefault(row["answer"]["dataset"], []).append(row["accuracy"] or 0.0)
    return {
        "parse_failure_rate": fmean(row["prediction"] is None for row in rows),
        "solved": fmean((row["accuracy"] or 0.0) >= 0.99 for row in rows),
        **{f"{name}_score": fmean(scores) for name, scores in by_dataset.items()},
    }


def _puzzle(sol, record_id) -> tuple[str, dict]:
    if isinstance(sol, dict) and isinstance(sol.get("dataset"), str) and isinstance(sol.get("entry"), dict):
        return sol["dataset"], sol["entry"]
    raise UserError(
        f'record {record_id}: the answer must be {{"dataset": name, "entry": {{...}}}} as '
        "scripts/demo/make_text_records.py writes it."
    )
