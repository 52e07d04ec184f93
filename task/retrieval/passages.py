"""The result of a search, its errors, and the text that an agent reads."""

from dataclasses import dataclass
from typing import Protocol

from task.errors import UserError

KINDS = ("timeout", "refused", "bad_json", "bad_shape", "too_large", "http_500", "http_400")


@dataclass(frozen=True)
class Passage:
    """One document of a corpus, with the score of the search that found it (higher is better)."""

    id: str
    title: str
    text: str
    score: float


class RetrievalError(Exception):
    """A search that failed for reasons other than the query. Callers count failures by `kind`, one of KINDS.

    timeout: no complete answer in time; refused: no connection, or a broken one; bad_json: the answer is not JSON;
    bad_shape: JSON of another form; too_large: more than the maximum number of bytes; http_500, http_400: a 5xx
    status, or a 4xx status or redirect.
    """

    def __init__(self, kind: str, sentence: str):
        assert kind in KINDS, kind
        super().__init__(sentence)
        self.kind = kind


class Retriever(Protocol):
    """Searches a corpus; safe to use from several threads, and in a process forked after it was made."""

    def search(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        """The best passages of each query, best first, at most top_k; an empty list if nothing matches.

        Equal queries get equal passages, so a search can be replayed. Raises RetrievalError, and UserError if top_k is
        below 1 or a query is not a string.
        """


def check_search(queries: list[str], top_k: int) -> None:
    """UserError for queries or a top_k that are invalid for every retriever."""
    if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
        raise UserError(f"queries is {queries!r:.60}, but it must be a list of strings: put the query into a list.")
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise UserError(f"top_k is {top_k!r}, but a search returns at least 1 passage: give an integer of at least 1.")


def format_passages(passages: list[Passage]) -> str:
    """The passages as an agent reads them, one per line, in the format of Search-R1 and Tree-GRPO (arXiv 2509.21240).

    >>> format_passages([Passage("7", "Seine", "A river in France.", 2.5)])
    'Doc 1(Title: Seine) A river in France.\\n'
    """
    lines = (
        f"Doc {place}(Title: {_one_line(passage.title)}) {_one_line(passage.text)}\n"
        for place, passage in enumerate(passages, start=1)
    )
    return "".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())
