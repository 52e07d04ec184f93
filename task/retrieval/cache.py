"""A cache of a search server's answers in SQLite, shared by threads and processes.

Answers that were written survive a killed process; its claims end with it. The file must be on a file system with
working locks. Delete it when the server's corpus changes: the cache identifies a server by its address alone.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

from task.errors import UserError
from task.retrieval.passages import Passage

BUSY_SECONDS = 30.0  # how long a statement waits for another process's write
POLL_SECONDS = 0.02
TABLE = """create table if not exists answers (
    server text, query text, top_k integer, passages text, primary key (server, query, top_k)) without rowid"""

logger = logging.getLogger(__name__)


class SearchCache:
    """Passages by (query, top_k) of one server; with `file` None they are kept in this process's memory.

    Create it in the process that uses it. Raises UserError if the file cannot be opened or is not such a cache.
    """

    def __init__(self, server: str, file: Path | None):
        self.server = server
        self._lock = threading.Lock()
        self._warned = False
        try:
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
            self._table = _opened(file)
            self._claims = open(f"{file}.lock", "ab") if file is not None else None  # noqa: SIM115 (locks live with it)
        except (sqlite3.Error, OSError) as error:
            raise UserError(f"the search cache {file} cannot be used ({error}): name another file.") from error

    def get(self, query: str, top_k: int) -> list[Passage] | None:
        """The cached passages; None if there are none yet, or the file cannot be read at the moment."""
        with self._lock, self._reported():
            row = self._table.execute(
                "select passages from answers where server = ? and query = ? and top_k = ?", (self.server, query, top_k)
            ).fetchone()
            return None if row is None else [Passage(*values) for values in json.loads(row[0])]

    def put(self, answers: dict[str, list[Passage]], top_k: int) -> None:
        """Stores answers. If the file cannot be written, on a full disk for example, they are only lost."""
        rows = [
            (self.server, query, top_k, json.dumps([astuple(one) for one in passages]))
            for query, passages in answers.items()
        ]
        with self._lock, self._reported():
            self._table.executemany("insert or replace into answers values (?, ?, ?, ?)", rows)

    @contextlib.contextmanager
    def claimed(self, queries: list[str], top_k: int, patience: float) -> Iterator[None]:
        """Claims these queries among processes, so that one of them asks the server and the others find its answer.

        After waiting `patience` seconds, perhaps for a stopped process, the block runs without the claim.
        """
        places = sorted(self._place(query, top_k) for query in queries) if self._claims is not None else []
        held, deadline = [], time.monotonic() + patience
        try:
            for place in places:
                while not self._claim(place) and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)
                held.append(place)
            yield
        finally:
            for place in held:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, place)

    def _place(self, query: str, top_k: int) -> int:
        """The byte of the lock file that represents a query; the file itself stays empty."""
        return int.from_bytes(hashlib.sha256(f"{self.server}\n{top_k}\n{query}".encode()).digest()[:7])

    def _claim(self, place: int) -> bool:
        try:
            fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError as error:  # EAGAIN, EACCES: another process holds it; others: no locks on this disk
            return error.errno not in (errno.EAGAIN, errno.EACCES)
        return True

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (
            sqlite3.Error,
            ValueError,
            TypeError,
        ) as error:  # ValueError, TypeError: a row that is not a list of passages
            if not self._warned:
                logger.warning("the search cache fails (%s): searches continue without it", error)
            self._warned = True


def _opened(file: Path | None) -> sqlite3.Connection:
    """The database of a cache; if other processes open it at the same moment, this one waits for its turn.

    SQLite's own timeout does not cover the switch to a write-ahead log, where it reports a lock at once.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        table = sqlite3.connect(file or ":memory:", timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            table.execute("pragma journal_mode=wal")  # one writer beside readers; consistent after a kill
            table.execute("pragma synchronous=normal")
            table.execute(TABLE)
            table.execute("select server, query, top_k, passages from answers limit 1")
            return table
        except sqlite3.Error as error:
            table.close()
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY  # or one of its extended codes
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)
