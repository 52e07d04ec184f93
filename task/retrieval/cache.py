"""Answers of a search server that were paid for once: kept in SQLite, shared by threads and processes.

A killed process leaves the answers that were written, and its claims end with it. The file must lie on a file system
whose locks work; delete it when the server's corpus changes, for it knows the server by its address alone.
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

BUSY_SECONDS = 30.0  # that a statement waits for another process's write
POLL_SECONDS = 0.02
TABLE = """create table if not exists answers (
    server text, query text, top_k integer, passages text, primary key (server, query, top_k)) without rowid"""

logger = logging.getLogger(__name__)


class SearchCache:
    """Passages by (query, top_k) of one server; `file` None keeps them in this process's memory.

    Make it in the process that uses it. Raises UserError where the file cannot be opened or is no such cache.
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
        """None where there is no answer yet, or the file cannot be read just now."""
        with self._lock, self._reported():
            row = self._table.execute(
                "select passages from answers where server = ? and query = ? and top_k = ?", (self.server, query, top_k)
            ).fetchone()
            return None if row is None else [Passage(*values) for values in json.loads(row[0])]

    def put(self, answers: dict[str, list[Passage]], top_k: int) -> None:
        """Keeps answers; a file that cannot be written, on a full disk for example, costs them and no more."""
        rows = [
            (self.server, query, top_k, json.dumps([astuple(one) for one in passages]))
            for query, passages in answers.items()
        ]
        with self._lock, self._reported():
            self._table.executemany("insert or replace into answers values (?, ?, ?, ?)", rows)

    @contextlib.contextmanager
    def claimed(self, queries: list[str], top_k: int, patience: float) -> Iterator[None]:
        """Holds the claim on these queries among processes, so that one of them asks and the others find its answer.

        After `patience` seconds of waiting, for a process that was stopped perhaps, it goes on without the claim.
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
        """The byte of the lock file that stands for a question; the file itself stays empty."""
        return int.from_bytes(hashlib.sha256(f"{self.server}\n{top_k}\n{query}".encode()).digest()[:7])

    def _claim(self, place: int) -> bool:
        try:
            fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError as error:  # either number says that another process holds it; a disk without locks says others
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
        ) as error:  # ValueError, TypeError: a row that is no list of passages
            if not self._warned:
                logger.warning("the search cache fails (%s): searches go on without it", error)
            self._warned = True


def _opened(file: Path | None) -> sqlite3.Connection:
    """The table of a cache; where other processes open it at the same moment, it waits for its turn.

    SQLite's own waiting does not cover the change to a write-ahead log: there it reports a lock at once.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        table = sqlite3.connect(file or ":memory:", timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            table.execute("pragma journal_mode=wal")  # readers and one writer at a time, and whole after a kill
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
