"""HTTP to a `vllm serve`: small JSON calls, and streams of tokens. A fault becomes one sentence with the way out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from task.errors import UserError

BROKEN = (OSError, HTTPException, ValueError)
GO_ON = "nothing was trained on this generation; start the server again and continue with --resume auto"


class ServerError(UserError):
    """The vLLM server failed; the message says how, and how to go on."""


class ServerLost(ServerError):
    """The server does not answer."""


class ServerRefusal(ServerError):
    """The server answered with an error; `reason` is its message."""

    def __init__(self, here: str, path: str, status: int, reason: str):
        super().__init__(f"{here} refuses {path} ({status}): {reason}; {GO_ON}")
        self.status, self.reason = status, reason


def server_url(args) -> str:
    """The URL of the server of a GRPOConfig."""
    return args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"


class ServerHTTP:
    """Calls of one server.

    Args:
        url: such as http://node7:8000.
        timeout: seconds that a call may take; a stream may be silent for any time.

    Attributes:
        here: the server in words.

    Raises:
        UserError: not the URL of a server, or no time.
    """

    def __init__(self, url: str, timeout: float):
        parts = urlsplit(url)
        try:
            sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is no number, or above 65535
            sound = False
        if not sound:
            raise UserError(
                f"{url!r} is not the URL of a vLLM server: set vllm_server_base_url to one such as "
                "http://localhost:8000, or vllm_server_host and vllm_server_port"
            )
        if not (timeout > 0 and math.isfinite(timeout)):
            raise UserError(f"vllm_server_timeout={timeout} must be a finite number of seconds above 0")
        self.url, self.timeout = url.rstrip("/"), timeout
        self.here = f"the vLLM server at {self.url}"
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection

    def get(self, path: str, timeout: float | None = None) -> dict:
        """The JSON reply to a GET; an empty reply is {}."""
        return self._call("GET", path, None, timeout)

    def post(self, path: str, body: dict | None = None) -> dict:
        """The JSON reply to a POST; an empty reply is {}."""
        return self._call("POST", path, body, None)

    def rpc(self, method: str, **kwargs):
        """The result of a method of the server's first worker; every worker runs it."""
        results = self.post("/collective_rpc", {"method": method, "kwargs": kwargs}).get("results") or [None]
        return results[0]

    def stream(self, path: str, body: dict, opened: Callable[[HTTPConnection], None]) -> Iterator[dict]:
        """The events of a POST that streams, up to the server's [DONE].

        `opened` gets the connection before the request is sent; closing it ends the stream.
        """
        connection = self._connection(self._host, self._port, timeout=self.timeout)
        try:
            opened(connection)
            connection.connect()
            connection.sock.settimeout(None)
            reply = self._request(connection, "POST", path, body)
            for line in reply:
                text = line.removeprefix(b"data: ").strip()
                if text == b"[DONE]":
                    return
                if text:
                    event = json.loads(text)
                    if "error" in event:
                        raise self._refusal(path, event)
                    yield event
            raise self._lost("closed a stream before its end")
        except ServerError:
            raise
        except (*BROKEN, AttributeError) as error:  # a closed connection loses its attributes
            raise self._lost(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def _call(self, method: str, path: str, body: dict | None, timeout: float | None) -> dict:
        connection = self._connection(self._host, self._port, timeout=timeout or self.timeout)
        try:
            text = self._request(connection, method, path, body).read()
            return json.loads(text) if text else {}
        except ServerError:
            raise
        except BROKEN as error:
            raise self._lost(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def _request(self, connection: HTTPConnection, method: str, path: str, body: dict | None) -> HTTPResponse:
        payload = None if body is None else json.dumps(body)
        connection.request(method, self._prefix + path, payload, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise ServerRefusal(self.here, path, reply.status, _message(reply.read()))
        return reply

    def _refusal(self, path: str, event: dict) -> ServerRefusal:
        error = event["error"]
        return ServerRefusal(self.here, path, error.get("code", 500), error.get("message", str(error)))

    def _lost(self, how: str) -> ServerLost:
        return ServerLost(f"{self.here} does not answer ({how}): {GO_ON}")


def _message(text: bytes) -> str:
    """The message in an error reply, on one line."""
    try:
        found = json.loads(text)
        found = found.get("error", found) if isinstance(found, dict) else found
        found = found.get("message", found.get("detail", found)) if isinstance(found, dict) else found
    except ValueError:
        found = text.decode(errors="replace")
    return " ".join(str(found).split())[:500] or "no reason given"
