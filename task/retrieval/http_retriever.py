"""Client of a search server with the protocol of scripts/retrieval/serve.py, which is Search-R1's.

POST {"queries": [...], "topk": k, "return_scores": true} -> {"result": [[{"document": {...}, "score": s}, ...], ...]}.
One event loop in its own thread makes the calls, so that the time limit applies to a whole answer, and at most
`concurrency` calls are in flight, however many branches search.
"""

import asyncio
import contextlib
import json
import math
import os
import threading
import weakref
from concurrent.futures import Future
from pathlib import Path
from urllib.parse import urlsplit

from task.errors import UserError
from task.retrieval.cache import SearchCache
from task.retrieval.passages import Passage, RetrievalError, check_search
from task.runners.optional import need

ATTEMPTS = 3  # without a connection, or if the server fails (5xx); not after a timeout
BACK_OFF = 0.2  # seconds before the second attempt, doubled for the third
MAX_ANSWER = 32 * 2**20  # bytes
MAX_QUERIES = 64  # per call


class HttpRetriever:
    """The Retriever of a server; an address without a path means /retrieve.

    cache: SQLite file of answers (None: in memory); no thread or process that shares the file sends an answered query
    again. Failures are not cached.
    timeout: seconds from the start of a call to the last byte of its answer.
    `sent` and `remembered` count the queries that were sent to the server, and those answered without it.
    """

    def __init__(self, url: str, *, cache: str | Path | None = None, timeout: float = 10.0, concurrency: int = 16):
        need("httpx2", "search")
        self.url = _address(url)
        if not (timeout > 0 and math.isfinite(timeout)) or concurrency < 1:
            raise UserError(
                f"timeout {timeout} and concurrency {concurrency} are invalid: give seconds above 0 and at least 1 "
                "call."
            )
        self.cache_file = None if cache is None else Path(cache)
        self.timeout, self.concurrency = timeout, concurrency
        self.sent = self.remembered = 0
        self._of_process = None
        self._left_behind = []  # of the process that this one was forked from: SQLite forbids closing it here
        self._here()  # an unusable cache is reported now

    def search(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        """As Retriever.search; at most MAX_QUERIES queries go into one call."""
        check_search(queries, top_k)
        here = self._here()
        queries = [_clean(query) for query in queries]
        ours, waited = {}, {}
        with here.lock:
            for query in dict.fromkeys(queries):
                known = here.under_way.get((query, top_k))
                waited[query] = known or Future()
                if known is None:
                    ours[query] = here.under_way[query, top_k] = waited[query]
        try:
            for query, passages in self._answers(here, list(ours), top_k).items():
                ours[query].set_result(passages)
        except BaseException as error:
            for future in ours.values():
                if not future.done():
                    future.set_exception(_for_others(error))
            raise
        finally:
            with here.lock:
                for query in ours:
                    del here.under_way[query, top_k]
                self.remembered += len(waited) - len(ours)
        found = {query: _result(future) for query, future in waited.items()}
        return [list(found[query]) for query in queries]

    def _answers(self, here, queries: list[str], top_k: int) -> dict[str, list[Passage]]:
        """Answers from the cache, and from the server those that it lacks."""
        found, missing = _known(here.cache, queries, top_k)
        patience = ATTEMPTS * self.timeout + BACK_OFF * 2**ATTEMPTS
        for start in range(0, len(missing), MAX_QUERIES):
            part = missing[start : start + MAX_QUERIES]
            with here.cache.claimed(part, top_k, patience):
                meanwhile, left = _known(here.cache, part, top_k)
                found |= meanwhile
                if left:
                    answers = dict(zip(left, here.ask(left, top_k), strict=True))
                    here.cache.put(answers, top_k)
                    found |= answers
                    with here.lock:
                        self.sent += len(left)
        with here.lock:
            self.remembered += len(queries) - len(missing)
        return found

    def _here(self) -> "_Process":
        """The state of this process: threads, connections and SQLite do not survive a fork."""
        if self._of_process is None or self._of_process.pid != os.getpid():
            self._left_behind.append(self._of_process)
            self._of_process = _Process(self.url, self.cache_file, self.timeout, self.concurrency)
        return self._of_process


class _Process:
    """The event loop, the connections and the cache of one process."""

    def __init__(self, url: str, cache: Path | None, timeout: float, concurrency: int):
        import httpx2

        self.pid, self.url, self.timeout = os.getpid(), url, timeout
        self.lock = threading.Lock()
        self.under_way: dict[tuple[str, int], Future] = {}
        self.cache = SearchCache(url, cache)
        self._calls = asyncio.Semaphore(concurrency)
        self._client = httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=concurrency))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="search client", daemon=True).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    def ask(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        """One call, repeated if that may help. Raises RetrievalError."""
        return asyncio.run_coroutine_threadsafe(self._ask(queries, top_k), self._loop).result()

    async def _ask(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._calls:
                    content = await self._post({"queries": queries, "topk": top_k, "return_scores": True})
                break
            except RetrievalError as error:
                if error.kind not in ("refused", "http_500") or attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(BACK_OFF * 2 ** (attempt - 1))
        return _passages(content, len(queries), top_k, self.url)

    async def _post(self, question: dict) -> bytes:
        import httpx2

        try:
            async with (
                asyncio.timeout(self.timeout),
                self._client.stream("POST", self.url, json=question) as response,
            ):
                if not response.is_success:
                    kind = "http_500" if response.is_server_error else "http_400"
                    raise RetrievalError(kind, f"{self.url} answered with status {response.status_code}")
                content = bytearray()
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > MAX_ANSWER:
                        raise RetrievalError("too_large", f"{self.url} answered with more than {MAX_ANSWER} bytes")
                return bytes(content)
        except TimeoutError as error:
            raise RetrievalError("timeout", f"{self.url} did not answer within {self.timeout:g} s") from error
        except (httpx2.HTTPError, OSError) as error:
            raise RetrievalError(
                "refused", f"{self.url} cannot be reached ({type(error).__name__}: {error})"
            ) from error


def _address(url: str) -> str:
    import httpx2

    try:
        httpx2.URL(url)  # refuses invalid URLs, such as one with a trailing line break
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except (ValueError, httpx2.InvalidURL):
        usable = False
    if not usable:
        raise UserError(
            f"{url!r} is not an address of a search server: give one such as http://localhost:8000/retrieve."
        )
    return url if parts.path.strip("/") or parts.query else f"{url.rstrip('/')}/retrieve"


def _known(cache: SearchCache, queries: list[str], top_k: int) -> tuple[dict[str, list[Passage]], list[str]]:
    found = {query: passages for query in queries if (passages := cache.get(query, top_k)) is not None}
    return found, [query for query in queries if query not in found]


def _result(future: Future) -> list[Passage]:
    try:
        return future.result()
    except RetrievalError as error:
        raise RetrievalError(error.kind, str(error)) from error  # a new one, because several threads may wait


def _for_others(error: BaseException) -> RetrievalError:
    """The error for other threads that waited for the same answer; one thread's interruption must not stop them."""
    if isinstance(error, RetrievalError):
        return RetrievalError(error.kind, str(error))
    return RetrievalError("refused", f"the thread that sent the query ended with {type(error).__name__}")


def _clean(text: str) -> str:
    """Replaces unpaired surrogates, which can be neither sent, stored nor tokenised."""
    return text.encode("utf-8", "replace").decode()


def _passages(content: bytes, count: int, top_k: int, url: str) -> list[list[Passage]]:
    """The passages of `count` queries. Raises RetrievalError bad_json or bad_shape."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RetrievalError("bad_json", f"{url} answered with something that is not JSON ({error})") from error
    with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError, OverflowError):
        if len(_list(answer["result"])) == count:
            return [[_passage(one) for one in _list(found)[:top_k]] for found in answer["result"]]
    raise RetrievalError(
        "bad_shape", f"{url} answered with JSON that has no list `result` of {count} list(s) of documents"
    )


def _list(value) -> list:
    if not isinstance(value, list):
        raise TypeError(type(value).__name__)
    return value


def _passage(one: dict) -> Passage:
    """The passage of {"document": ..., "score": ...} or of a bare document, also with Search-R1's "contents"."""
    document, score = (one["document"], float(one["score"])) if "document" in one else (one, 0.0)
    if "text" in document:
        title, text = document.get("title") or "", document["text"]
    else:
        title, _, text = document["contents"].partition("\n")
        title = title.strip().strip('"')
    if not math.isfinite(score):
        raise ValueError(score)
    return Passage(_clean(str(document.get("id", ""))), _clean(title), _clean(text), score)
