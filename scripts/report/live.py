"""The page of runs that are still being written: rebuilt when their files change, and served on this machine."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from report.page import page_content, render_page
from report.pictures import Thumbnails
from report.sources import find_sources, watched_files

LEAST_PAUSE = 2.0  # seconds between two builds
PAUSE_FACTOR = 9.0  # the pause is at least this many times the build time, so a tenth of one core is used at most
OUR_HOSTS = {"127.0.0.1", "localhost", "[::1]"}


class LivePage:
    """The up-to-date page of some folders.

    Args:
        folders: runs and evaluations; an empty one is shown as soon as it has content.
        tasks: task_type -> Task.
    """

    def __init__(self, folders: list[Path], tasks: dict):
        self.folders, self.tasks = folders, tasks
        self.title = " and ".join(folder.resolve().name for folder in folders)
        self._thumbnails, self._lock = Thumbnails(), threading.Lock()
        self._version, self._content, self._blob = "", {}, ""
        self._built_until = self._took = 0.0
        self._refresh()

    def news(self, have: str) -> dict | None:
        """{"version", "data", "pictures"}, or None if `have` is the newest version."""
        with self._lock:
            if time.monotonic() - self._built_until >= max(LEAST_PAUSE, PAUSE_FACTOR * self._took):
                try:
                    self._refresh()
                except (OSError, ValueError) as error:  # a file or folder vanished while it was read: keep the page
                    print(f"watch.py: {error}", file=sys.stderr)
            if have == self._version:
                return None
            return {"version": self._version, "data": self._data(), "pictures": self._blob}

    def page(self) -> str:
        """The current page."""
        self.news("")
        with self._lock:
            return render_page(self.title, self._data(), self._blob, live=True)

    def _data(self) -> dict:
        return {"title": self.title, "version": self._version, **self._content}

    def _refresh(self) -> None:
        version, started = signature(self.folders), time.monotonic()
        if version != self._version:
            self._content, self._blob = page_content(
                find_sources(self.folders, may_be_empty=True), self.tasks, self._thumbnails
            )
            self._version = version
        self._built_until = time.monotonic()
        self._took = self._built_until - started


def signature(folders: list[Path]) -> str:
    """A digest over the names, sizes and times of the page's files, which changes whenever one of them does."""
    digest = hashlib.sha256()
    for source in find_sources(folders, may_be_empty=True):
        for file in watched_files(source):
            try:
                stat = file.stat()
            except OSError:
                continue
            digest.update(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def make_server(live: LivePage, port: int) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 (port 0: a free one) with `/`, the page, and `/news?have=VERSION`, the changes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            host = self.headers.get("Host", "").rpartition(":")
            if (
                host[0] or host[2]
            ) not in OUR_HOSTS:  # a web page elsewhere must not read training data by a name trick
                return self._answer(403, "text/plain", b"this server answers as localhost only\n")
            address = urlsplit(self.path)
            if address.path == "/":
                return self._answer(200, "text/html; charset=utf-8", live.page().encode())
            if address.path != "/news":
                return self._answer(404, "text/plain", b"there are / and /news\n")
            news = live.news(parse_qs(address.query).get("have", [""])[0])
            if news is None:
                return self._answer(204, "application/json", b"")
            return self._answer(200, "application/json", json.dumps(news, allow_nan=False).encode())

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            try:
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):  # the client is gone
                self.close_connection = True

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server
