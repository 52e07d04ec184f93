"""The retriever a task's settings name: a corpus of this machine, or a server's address."""

from pathlib import Path

from task.retrieval.passages import Retriever


def make_retriever(spec: str | Path, *, cache: str | Path | None = None, timeout: float = 10.0) -> Retriever:
    """BM25 over a corpus folder (scripts/retrieval/build_corpus.py) or a .jsonl file; or a client of an http(s) URL.

    cache: file of a client's answers, kept between runs and shared by processes (None: kept in memory only).
    timeout: seconds a client waits for one answer; a corpus of this machine takes no notice of either.
    Raises ValueError where the corpus is missing or faulty, the URL is none, or a package of the extra `search` lacks.
    """
    spec = str(spec)
    if spec.startswith(("http://", "https://")):
        from task.retrieval.http_retriever import HttpRetriever

        return HttpRetriever(spec, cache=cache, timeout=timeout)
    if "://" in spec:
        raise ValueError(
            f"the retriever {spec!r} is neither a path nor an address that starts with http:// or https://."
        )
    from task.retrieval.bm25 import BM25Retriever

    return BM25Retriever(Path(spec))
