"""BM25 over a local corpus, by bm25s: in process, a millisecond a query on ten thousand documents.

The index lies beside the corpus and is memory-mapped, so that processes share it; it names the corpus it was made of by
hash, and a changed corpus makes a new one.
"""

import contextlib
import fcntl
import json
import os
import shutil
from pathlib import Path

from task.retrieval.corpus import Documents, corpus_file, read_documents, sha256_of
from task.retrieval.passages import Passage, check_search
from task.runners.optional import need

WORDS = r"\w+"  # single letters and digits are words too
FORM = 1  # of the index folder: raise it when WORDS or the files change


class BM25Retriever:
    """The Retriever of a corpus folder or .jsonl file. A document that shares no word with a query is not found by it.

    English stop words count for nothing; nothing is stemmed. Raises ValueError where the corpus is missing or faulty,
    or its index cannot be written.
    """

    def __init__(self, corpus: str | Path):
        need("bm25s", "search")
        import bm25s
        import numpy

        file = corpus_file(Path(corpus))
        folder = index_folder(file)
        try:
            _make_index(file, folder)
        except OSError as error:
            raise ValueError(
                f"the index {folder} cannot be made ({error}): copy the corpus to a folder that can be written to."
            ) from error
        self.corpus = file
        self.documents = Documents(file, numpy.load(folder / "positions.npy", mmap_mode="r"))
        self._index = bm25s.BM25.load(folder, mmap=True)

    def search(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        """As Retriever.search; passages of equal score come in the order of the corpus."""
        check_search(queries, top_k)
        found: dict[str, list[Passage]] = {}
        for query, words in zip(queries, _words(queries), strict=True):
            if query not in found:
                found[query] = self._passages(words, min(top_k, len(self.documents)))
        return [found[query] for query in queries]

    def _passages(self, words: list[str], top_k: int) -> list[Passage]:
        if not self._index.get_tokens_ids(words):
            return []
        numbers, scores = self._index.retrieve([words], k=top_k, show_progress=False, backend_selection="numpy")
        best = sorted(zip(-scores[0], numbers[0], strict=True))
        return [
            Passage(**self.documents[int(number)], score=round(float(-score), 4)) for score, number in best if score < 0
        ]


def index_folder(file: Path) -> Path:
    return file.with_suffix(".bm25")


def _words(texts: list[str]) -> list[list[str]]:
    import bm25s

    return bm25s.tokenize(texts, token_pattern=WORDS, stopwords="en", return_ids=False, show_progress=False)


def _make_index(file: Path, folder: Path) -> None:
    """Makes the index unless it is there and of this very corpus; one of several processes makes it, the others wait."""
    import bm25s

    made_of = {"corpus_sha256": sha256_of(file), "form": FORM, "bm25s": bm25s.__version__}
    if _is_made_of(folder, made_of):
        return
    with open(folder.with_suffix(".bm25.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_made_of(folder, made_of):
            return
        new = folder.with_suffix(f".bm25.{os.getpid()}")
        try:
            _write_index(file, new)
            (new / "made_of.json").write_text(json.dumps(made_of), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)  # whoever has it mapped keeps it
            new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _is_made_of(folder: Path, made_of: dict) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / "made_of.json").read_text(encoding="utf-8")) == made_of
    return False


def _write_index(file: Path, folder: Path) -> None:
    import bm25s
    import numpy

    positions, texts = [], []
    for position, document in read_documents(file):
        positions.append(position)
        texts.append(f"{document['title']}\n{document['text']}")
    if not texts:
        raise ValueError(f"the corpus {file} holds no document: give one with at least one line.")
    index = bm25s.BM25()
    tokens = bm25s.tokenize(texts, token_pattern=WORDS, stopwords="en", show_progress=False)
    if not tokens.vocab:
        raise ValueError(f"the corpus {file} holds no word to search for: its texts are marks and stop words alone.")
    index.index(tokens, show_progress=False)
    index.save(folder, show_progress=False)
    numpy.save(folder / "positions.npy", numpy.array(positions, dtype=numpy.int64))
