"""What a search gives back, what it may raise, and how an agent reads it."""

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
    """A search that failed through no fault of the query: data for the caller, who counts it by `kind`, one of KINDS.

    timeout: no complete answer in time; refused: no connection, or one that broke; bad_json: the answer is not JSON;
    bad_shape: JSON of another form; too_large: more bytes than an answer may have; http_500, http_400: a status of
    that hundred (400 with every redirect too).
    """

    def __init__(self, kind: str, sentence: str):
        assert kind in KINDS, kind
        super().__init__(sentence)
        self.kind = kind


class Retriever(Protocol):
    """Searches a corpus; safe to use from several threads, and in a process forked after it was made."""

    def search(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        """For each query the best passages, best first, at most top_k, none where nothing fits.

        Equal queries get equal passages, so a search can be replayed. Raises RetrievalError; UserError where top_k is
        below 1 or a query is not a string.
        """


def check_search(queries: list[str], top_k: int) -> None:
    """UserError for what no retriever can look for."""
    if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
        raise UserError(f"queries is {queries!r:.60}, but it must be a list of strings: put the query into a list.")
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise UserError(f"top_k is {top_k!r}, but a search returns at least 1 passage: give a whole number from 1.")


def format_passages(passages: list[Passage]) -> str:
    """The passages as an agent reads them, a line each: the form of Search-R1, which Tree-GRPO (2509.21240) keeps.

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
