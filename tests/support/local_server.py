"""HTTP servers on a free port of this machine, for tests of clients."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def send(handler, content: bytes, status: int = 200) -> None:
    """Answers the request that the handler reads."""
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


class LocalServer:
    """Calls `answer(handler, question)` for the JSON of every POST; `answer` may be exchanged while it serves.

    Attributes:
        asked: the JSON of every request; paths, headers: theirs.
        most_at_once: the largest number of requests that were open together.
    """

    def __init__(self, answer):
        self.answer, self.lock = answer, threading.Lock()
        self.asked, self.paths, self.headers, self.at_once, self.most_at_once = [], [], [], 0, 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.asked.append(question)
                    outer.paths.append(self.path)
                    outer.headers.append(dict(self.headers))
                    outer.at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer.at_once)
                try:
                    outer.answer(self, question)
                except OSError:
                    pass  # the client has gone
                finally:
                    with outer.lock:
                        outer.at_once -= 1

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads, self.http.block_on_close = True, False
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()
