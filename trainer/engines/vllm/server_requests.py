"""`Requests` of a `vllm serve`: one stream of tokens per request, read in threads and taken in lockstep."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from socket import SHUT_RDWR

from trainer.engines.requests import Request, Sampled
from trainer.engines.vllm.arguments import cached_id, entropy_id
from trainer.engines.vllm.server_http import GO_ON, ServerError, ServerHTTP, ServerRefusal

GENERATE = "/inference/v1/generate"


@dataclass
class Medium:
    """One picture or video of a request: where its placeholders stand, and its tensors.

    Attributes:
        modality: image or video.
        name: under which the server knows it; other weights, other name.
        offset, length: of its placeholders in the request's ids.
        data: makes the tensors' transport form.
    """

    modality: str
    name: str
    offset: int
    length: int
    data: Callable[[], str]


@dataclass
class _Stream:
    """What has arrived for a request and was not taken yet."""

    request: Request
    media: list[Medium]
    tokens: deque = field(default_factory=deque)
    started: bool = False
    ended: bool = False
    dropped: bool = False
    connection: HTTPConnection | None = None

    def take(self, choice: dict, vocab_size: int) -> None:
        """Adds the tokens of an event."""
        for one in choice["logprobs"]["content"] if choice["token_ids"] else ():
            token, values = one["token_id"], {of["token_id"]: of["logprob"] for of in one["top_logprobs"]}
            cached = None if self.started else int(values[cached_id(token, vocab_size)])
            self.started = True
            entropy = values[entropy_id(token, vocab_size)]
            self.tokens.append(Sampled(self.request.name, token, one["logprob"], entropy, cached))

    def close(self) -> None:
        """Ends the connection, also while another thread reads from it."""
        self.dropped = True
        if self.connection is not None and self.connection.sock is not None:
            with suppress(OSError):  # it may be closed already
                self.connection.sock.shutdown(SHUT_RDWR)


class ServerRequests:
    """The running requests of one process on a server.

    A step takes the next token of every request, and waits for the slowest, so that what a policy sees, and when, does
    not depend on the network. A picture's tensors are sent once: requests that share it wait until the first of them
    has an answer, and then give its name.

    Args:
        http: to the server.
        version: of the weights that the server should have.
        eos_ids: tokens with which a request ends.
        block_size, vocab_size: of the server's engine.
        media_of: a request's pictures and videos.
        arguments_of: a request's `Draw` as values for the worker's sampler.

    Attributes:
        adapter: the name of the adapter to sample with, if it is loaded apart.

    Raises:
        ServerError: the server stops answering, is silent for longer than the timeout, refuses a request, or samples
            with other weights.
    """

    def __init__(
        self,
        http: ServerHTTP,
        version: str,
        eos_ids: Collection[int],
        block_size: int,
        vocab_size: int,
        media_of: Callable[[Request], list[Medium]],
        arguments_of: Callable[[Request], dict],
    ):
        self.http, self.version, self.eos_ids = http, version, list(eos_ids)
        self.block_size, self.vocab_size = block_size, vocab_size
        self.media_of, self.arguments_of = media_of, arguments_of
        self.adapter: str | None = None
        self._streams: dict[str, _Stream] = {}
        self._news = threading.Condition()
        self._fault: Exception | None = None
        self._heard = 0.0
        self._sending: dict[str, _Stream] = {}  # picture -> the request that brings it
        self._known: set[str] = set()  # pictures that the server has

    @property
    def failed(self) -> bool:
        """Whether a request has failed since the last weights came."""
        return self._fault is not None

    def renew(self, version: str) -> None:
        """Other weights: what the server knew under their names is gone."""
        self.version, self._fault = version, None
        self._known.clear()

    def add(self, request: Request) -> None:
        stream = self._streams[request.name] = _Stream(request, self.media_of(request))
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def step(self) -> list[Sampled]:
        """The next token of every running request, in the order in which they were added."""
        with self._news:
            self._heard = time.monotonic()
            while self._fault is None and any(not (one.tokens or one.ended) for one in self._streams.values()):
                silent = time.monotonic() - self._heard
                if silent > self.http.timeout or not self._news.wait(self.http.timeout - silent):
                    self._fault = ServerError(
                        f"{self.http.here} sent no token for {self.http.timeout:g} s (vllm_server_timeout): {GO_ON}"
                    )
            if self._fault is not None:
                raise self._fault
            sampled = [stream.tokens.popleft() for stream in self._streams.values() if stream.tokens]
            gone = [name for name, stream in self._streams.items() if stream.ended and not stream.tokens]
            for name in gone:
                del self._streams[name]
        return sampled

    def abort(self, names: Iterable[str]) -> None:
        with self._news:
            for name in names:
                if (stream := self._streams.pop(name, None)) is not None:
                    stream.close()
            self._news.notify_all()

    def _read(self, stream: _Stream) -> None:
        """Sends the request and collects its tokens; runs in a thread of its own."""
        try:
            if self._may_send(stream):
                try:
                    self._receive(stream)
                except ServerRefusal:
                    if stream.started or not stream.media or stream.dropped:
                        raise
                    with self._news:  # the server has forgotten a picture
                        self._known -= {one.name for one in stream.media}
                    self._receive(stream)
        except Exception as error:  # raised where the tokens are taken
            with self._news:
                if not stream.dropped:
                    self._fault = self._fault or error
        finally:
            with self._news:
                stream.ended = True
                for name in [name for name, sender in self._sending.items() if sender is stream]:
                    del self._sending[name]
                self._news.notify_all()

    def _may_send(self, stream: _Stream) -> bool:
        """Waits while other requests bring this one's pictures; False if it was dropped meanwhile."""
        names = {one.name for one in stream.media}
        with self._news:
            while not (stream.dropped or self._fault) and any(
                name not in self._known and self._sending.get(name, stream) is not stream for name in names
            ):
                self._news.wait()
            self._sending |= dict.fromkeys(names - self._known, stream)
            return not (stream.dropped or self._fault)

    def _receive(self, stream: _Stream) -> None:
        with self._news:
            known = set(self._known)

        def opened(connection):
            stream.connection = connection
            if stream.dropped:
                raise OSError("dropped")

        reasons = []
        for event in self.http.stream(GENERATE, self._body(stream, known), opened):
            for choice in event["choices"]:
                self._check(choice)
                reasons.append(choice["finish_reason"])
                with self._news:
                    stream.take(choice, self.vocab_size)
                    self._known |= {one.name for one in stream.media}
                    self._heard = time.monotonic()
                    self._news.notify_all()
        if not stream.dropped and not any(reasons):
            raise ServerError(f"{self.http.here} ended a request before its last token: {GO_ON}")

    def _check(self, choice: dict) -> None:
        """Raises ServerError for tokens of other weights, and for a request that the server ended on its own."""
        others = {span["version"] for span in choice.get("weight_versions") or ()} - {self.version}
        if others:
            raise ServerError(
                f"{self.http.here} sampled with the weights {', '.join(sorted(others))} and not with "
                f"{self.version}: another run or a restart has replaced them, and {GO_ON}"
            )
        if choice.get("finish_reason") not in (None, "stop", "length"):
            raise ServerError(f"{self.http.here} ended a request by itself ({choice['finish_reason']}): {GO_ON}")

    def _body(self, stream: _Stream, known: set[str]) -> dict:
        request = stream.request
        body = {
            "token_ids": request.ids,
            "cache_salt": f"weights {self.version}",
            "stream": True,
            "sampling_params": {
                "temperature": 1.0,
                "max_tokens": request.max_tokens,
                "stop_token_ids": self.eos_ids,
                "ignore_eos": True,
                "logprobs": 3,  # the token's, the entropy, and what was cached
                "detokenize": False,
                "extra_args": self.arguments_of(request),
            },
        }
        if self.adapter is not None:
            body["model"] = self.adapter
        if stream.media:
            body["features"] = _features(stream.media, known)
        return body


def _features(media: list[Medium], known: set[str]) -> dict:
    """The pictures of a request by modality; those in `known` without their tensors."""
    features: dict[str, dict] = {"mm_hashes": {}, "mm_placeholders": {}, "kwargs_data": {}}
    for one in media:
        place = {"offset": one.offset, "length": one.length}
        data = None if one.name in known else one.data()
        for key, value in zip(features, (one.name, place, data), strict=True):
            features[key].setdefault(one.modality, []).append(value)
    return features
