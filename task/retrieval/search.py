"""The retriever that a task's settings name: a local corpus, or a server's address."""

import threading
from pathlib import Path

from task.errors import UserError
from task.retrieval.passages import Retriever

_made: dict[tuple, Retriever] = {}
_making = threading.Lock()


def make_retriever(spec: str | Path, *, cache: str | Path | None = None, timeout: float = 10.0) -> Retriever:
    """BM25 over a corpus folder (scripts/retrieval/build_corpus.py) or a .jsonl file; or a client of an http(s) URL.

    cache: file of a client's answers, kept between runs and shared by processes (None: kept in memory only).
    timeout: seconds that a client waits for one answer. Both are ignored for a local corpus.
    Equal arguments give the same retriever within a process: environments share its index, connections and limits.
    Raises UserError if the corpus is missing or faulty, the URL is invalid, or a package of the extra `search` is
    missing.
    """
    key = (str(spec), None if cache is None else str(cache), timeout)
    with _making:
        if key not in _made:
            _made[key] = _make(*key)
        return _made[key]


def _make(spec: str, cache: str | None, timeout: float) -> Retriever:
    if spec.startswith(("http://", "https://")):
        from task.retrieval.http_retriever import HttpRetriever

        return HttpRetriever(spec, cache=cache, timeout=timeout)
    if "://" in spec:
        raise UserError(
            f"the retriever {spec!r} is neither a path nor an address: an address starts with http:// or https://."
        )
    from task.retrieval.bm25 import BM25Retriever

    return BM25Retriever(Path(spec))
