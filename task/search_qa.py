"""Question answering by an agent that searches a corpus in one or several turns.

Data: NQ, HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle and similar (scripts/data/convert.py), or any record whose
answer is a text, or a list of texts any of which is right. `environment_args` name the corpus:
{"retriever": folder, .jsonl file or http address, "top_k": 3, "cache": SQLite file, "timeout": seconds}.

Format and prompt follow Search-R1 and Tree-GRPO (arXiv 2509.21240): <think>, <search>, <information>, <answer>.

Reward: the score of the answer, exact match or F1 after SQuAD's normalisation, maximum over the golds. With
`--reward_weights 0.2 1.0` the sum of both rewards is the paper's equation 13 (score, minus 0.2 for a bad format) plus
0.2, a constant that cancels in the advantages. Two keys of a record change it:

- "score": "em" (default) or "f1" (the paper's choice for web search);
- "qa_reward": "paper" (default), or "code" for the released code's table, again with weights 0.2 and 1.0:

      answer               format ok   bad format
      right (em)           1.0         0.8
      wrong (em)           0.2         0.1
      none                 0.2         0.0
      f1 > 0               f1          f1 - 0.2
      f1 = 0               0.2         0.0
"""

from pathlib import Path
from statistics import fmean

from task.agents.text import cost_metrics, exact_match, f1_score, form_reward, tag_answer
from task.errors import UserError
from task.retrieval.passages import format_passages
from task.retrieval.search import make_retriever

SCORES, QA_REWARDS = ("em", "f1"), ("paper", "code")
CHECKOUT = Path(__file__).resolve().parents[1]

TASK_CONFIG = {
    "task_type": "search_qa",
    "grpo_template": (
        "Answer the question below. Reason inside <think> and </think> first, and again whenever you have learnt "
        "something new. If you lack knowledge, search for it with <search> query </search>; what is found comes back "
        "between <information> and </information>. You may search several times. Once nothing is missing, give the "
        "answer alone, without explanation, inside <answer> and </answer>, for example <answer> Beijing </answer>. "
        "Question: {Question}\n"
    ),
    "description": "a question answered by searching a corpus, exact match or F1",
    "input_format": "a question",
    "output_format": "a few words inside <answer> </answer>, after turns of <think> and <search>",
    "frame": "none",
}

SELF_TEST = {
    "record": {"answer": ["Robert Koch"]},
    "right": (
        "<think>who was it?</think><search>discoverer of the bacillus</search>\n\n<information>Doc 1(Title: Koch) "
        "Robert Koch found it.\n</information>\n\n<think>found</think><answer>robert koch.</answer>"
    ),
    "wrong": "<think>a guess</think><answer>Louis Pasteur or Robert Koch</answer>",
}

METRICS = {
    **dict.fromkeys(("em", "f1", "answered_share", "em_*_hops"), "higher"),
    **dict.fromkeys(("turns", "tool_calls"), "lower"),
}


class SearchEnvironment:
    """One tool and no state, so forks share the environment."""

    def __init__(self):
        self._retriever = None
        self._top_k = 3

    def reset(self, retriever=None, top_k: int = 3, cache=None, timeout: float = 10.0, **row) -> None:
        """Opens the corpus or server of `environment_args`; a relative path may also start at the checkout."""
        if not isinstance(retriever, str) or not retriever:
            raise UserError(
                f"the search has retriever {retriever!r}: name a corpus folder, a .jsonl file or a server's http "
                'address in environment_args, such as {"retriever": "metadata/demo/search/corpus.jsonl"}.'
            )
        if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
            raise UserError(f"environment_args: top_k is {top_k!r}: give a whole number from 1.")
        if "://" not in retriever and not Path(retriever).exists() and (CHECKOUT / retriever).exists():
            retriever = str(CHECKOUT / retriever)
        self._retriever = make_retriever(retriever, cache=cache, timeout=timeout)
        self._top_k = top_k

    def search(self, query: str) -> str:
        """Searches the corpus.

        Args:
            query: what to look for, in words.

        Returns:
            The best passages, a line each.
        """
        return format_passages(self._retriever.search([query], self._top_k)[0]) or "nothing was found"

    def _fork(self):
        return self


def make_environment():
    return SearchEnvironment()


def format_reward(completion, sol, **kw):
    """1.0 if the turns read think (search information think)* answer, with nothing in between; else 0.0."""
    return form_reward(completion, ["search"], kw.get("thought_end", "</think>"))


def accuracy_reward(completion, sol, **kw):
    """(score, {"em", "f1", "answered"}); None without a true answer."""
    if sol is None:
        return None
    golds, (score, table) = _golds(sol, kw.get("id")), _settings(kw)
    answer = parse_answer(completion, **kw)
    em, f1 = exact_match(answer, golds), f1_score(answer, golds)
    value = em if score == "em" else f1
    if table == "code":
        value = _released(value, score, answer is not None, format_reward(completion, sol, **kw) == 1)
    return value, {"em": em, "f1": f1, "answered": float(answer is not None)}


def parse_answer(completion, **kw):
    """The text of the last answer block, or None."""
    return tag_answer(completion, thought_end=kw.get("thought_end", "</think>"))


def compute_metrics(predictions, **kw):
    """em, f1, answered_share, mean turns and tool_calls, and em_HOPS_hops if records have `hops`."""
    rows = [row for row in predictions if row["status"] != "load_error" and row["answer"] is not None]
    if not rows:
        return {}
    em = [exact_match(row["prediction"], _golds(row["answer"], row["id"])) for row in rows]
    metrics = {
        "em": fmean(em),
        "f1": fmean(f1_score(row["prediction"], _golds(row["answer"], row["id"])) for row in rows),
        "answered_share": fmean(row["prediction"] is not None for row in rows),
    }
    metrics |= cost_metrics(rows)
    hops = [_extra(row.get("record")).get("hops") for row in rows]
    for count in sorted({count for count in hops if isinstance(count, int)}):
        metrics[f"em_{count}_hops"] = fmean(one for one, own in zip(em, hops, strict=True) if own == count)
    return metrics


def _released(value: float, score: str, answered: bool, good: bool) -> float:
    """The part of the released code's reward that is not 0.2 * format."""
    if value > 0:
        return 0.8 if score == "em" else value - 0.2
    return 0.1 if score == "em" and answered and not good else 0.0


def _settings(kw) -> tuple[str, str]:
    extra = _extra(kw.get("record"))
    found = extra.get("score", "em"), extra.get("qa_reward", "paper")
    for name, value, known in zip(("score", "qa_reward"), found, (SCORES, QA_REWARDS), strict=True):
        if value not in known:
            raise UserError(f"record {kw.get('id')}: {name} is {value!r}: choose one of {', '.join(known)}.")
    return found


def _extra(record) -> dict:
    return record.get("extra") or {} if isinstance(record, dict) else {}


def _golds(sol, record_id) -> list[str]:
    golds = sol if isinstance(sol, list) else [sol]
    texts = [str(gold) for gold in golds if isinstance(gold, str | int | float) and not isinstance(gold, bool)]
    if len(texts) != len(golds) or not golds or not all(text.strip() for text in texts):
        raise UserError(
            f"record {record_id}: the answer must be a text or a list of texts that are not empty, got {sol!r}: "
            "correct it."
        )
    return texts
