"""A small stand-in for `vllm serve`: the endpoints that training uses, tokens by hash, and faults on demand."""

from __future__ import annotations

import copy
import hashlib
import json
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from safetensors.torch import load_file

from trainer.engines.vllm.arguments import cached_id, entropy_id
from trainer.engines.vllm.server import facts_of

EOS, VOCAB = 2, 50
MODEL = {"model_type": "tiny", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": VOCAB}


def token_at(seed: int, index: int) -> tuple[int, float, float]:
    """Token, log-prob and entropy of a request; every eighth token ends it."""
    number = int.from_bytes(hashlib.blake2b(f"{seed} {index}".encode(), digest_size=4).digest(), "big")
    return (EOS if number % 8 == 0 else 3 + number % (VOCAB - 3)), -(number % 100) / 50, (number % 70) / 20


class HashedTokens:
    """Tokens from nothing but a request's seed."""

    facts = MODEL

    def token(self, ids: list[int], arguments: dict, index: int) -> tuple[int, float, float]:
        return token_at(arguments["seed"], index)

    def load(self, folder: str) -> None:
        pass


class ServedModel:
    """Samples from a text model, whose weights it reads from the folder that it is given."""

    def __init__(self, model):
        self.model, self.facts, self.forbidden_ids = copy.deepcopy(model).eval(), facts_of(model.config), []

    @torch.no_grad()
    def token(self, ids: list[int], arguments: dict, index: int) -> tuple[int, float, float]:
        logits = self.model(input_ids=torch.tensor([ids])).logits[0, -1] / arguments["temperature"]
        logits[self.forbidden_ids] = -torch.inf
        log_probs = logits.log_softmax(-1)
        token = self.draw(log_probs.exp(), ids, arguments, index)
        return token, float(log_probs[token]), float(torch.special.entr(log_probs.exp()).sum())

    def draw(self, probabilities: torch.Tensor, ids: list[int], arguments: dict, index: int) -> int:
        generator = torch.Generator().manual_seed(arguments["seed"] % 2**60 + index)
        return int(probabilities.multinomial(1, generator=generator))

    def load(self, folder: str) -> None:
        for file in Path(folder).glob("*.safetensors"):
            self.model.load_state_dict(load_file(file))


class FakeVLLM:
    """What the server has and saw; set an attribute to make it fail.

    Attributes:
        version: of the weights.
        requests: bodies of the generate requests, in the order of arrival.
        calls: paths and, for `collective_rpc`, methods.
        pictures: names of the pictures whose tensors arrived.
        fault: None, or what happens at the third token of a request: "dies", "silent", "error", "ends", "aborted", or
            "weights" (those of another run).
        served: what samples and takes weights: `HashedTokens`, or `ServedModel`.
        forgets: pictures are forgotten as soon as they were used once.
        loads: whether weights can be loaded.
        adapters: name -> files of each adapter that is loaded.
    """

    def __init__(self, served=None):
        self.served = served or HashedTokens()
        self.version, self.max_model_len = "default", 4096
        self.requests, self.calls, self.pictures, self.sent = [], [], set(), []
        self.adapters = {}
        self.fault, self.forgets, self.loads, self.busy, self.slow = None, False, True, 0, 0.0
        self.lock = threading.Lock()

    def reply(self, path: str, body: dict) -> tuple[int, dict]:
        self.calls.append(body.get("method", path))
        if path == "/collective_rpc":
            return self._rpc(body["method"], body["kwargs"])
        if path == "/reset_prefix_cache":
            self.busy = max(self.busy - 1, 0)
            return 200, {"success": self.busy == 0}
        if path == "/v1/load_lora_adapter":
            self.adapters[body["lora_name"]] = sorted(file.name for file in Path(body["lora_path"]).iterdir())
        if path == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        if path == "/update_weight_version":
            self.version = body["new_version"]
        return 200, {"weight_version": self.version}

    def _rpc(self, method: str, given: dict) -> tuple[int, dict]:
        if method == "describe":
            sizes = {"max_model_len": self.max_model_len, "block_size": 16, "dtype": "float32"}
            return 200, {"results": [self.served.facts | sizes]}
        if method == "load_folder":
            if not self.loads:
                return 500, {"error": {"message": "No such file or directory"}}
            self.served.load(given["folder"])
        if method == "use_tree_sampler":
            self.served.forbidden_ids = given["forbidden_ids"]
        return 200, {"results": [None]}

    def receive(self, body: dict) -> str | None:
        """Notes a request; returns why it is refused."""
        with self.lock:
            self.requests.append(body)
            features = body.get("features")
            for modality, names in (features or {"mm_hashes": {}})["mm_hashes"].items():
                for name, data in zip(names, features["kwargs_data"][modality], strict=True):
                    if data is not None:
                        self.sent.append(name)
                    elif name not in self.pictures:
                        return f"Expected a cached item for {name}"
                    self.pictures.add(name)
                    if self.forgets:
                        self.pictures.discard(name)
        return None

    def events(self, body: dict):
        """The stream of a request; None stands for a connection that breaks."""
        own, ids = body["sampling_params"], list(body["token_ids"])
        for index in range(own["max_tokens"]):
            with self.lock:
                token, logprob, entropy = self.served.token(ids, own["extra_args"], index)
            ids.append(token)
            time.sleep(self.slow * (own["extra_args"]["seed"] % 3))
            last = "stop" if token in own["stop_token_ids"] else None
            last = last or ("length" if index + 1 == own["max_tokens"] else None)
            version = self.version
            if self.fault and index == 2:
                if self.fault == "dies":
                    yield None
                if self.fault == "silent":
                    time.sleep(30)
                if self.fault == "error":
                    yield {"error": {"message": "the engine died", "code": 500}}
                if self.fault == "weights":
                    version, last = "another:4", "length"
                if self.fault == "aborted":
                    last = "abort"
                if self.fault == "ends":
                    return
            size, cached = self.served.facts["vocab_size"], 0 if index else len(body["token_ids"]) // 2
            values = {token: logprob, entropy_id(token, size): entropy, cached_id(token, size): cached}
            top = [{"token_id": of, "logprob": value} for of, value in values.items()]
            content = [{"token_id": token, "logprob": logprob, "top_logprobs": top}]
            spans = [{"version": version, "start": 0, "end": index + 1}] if last else None
            choice = {"index": 0, "logprobs": {"content": content}, "finish_reason": last, "token_ids": [token]}
            yield {"choices": [choice | {"weight_versions": spans}]}
            if last:
                return


def handler(fake: FakeVLLM):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_GET(self):
            self._answer(*fake.reply(self.path, {}))

        def do_POST(self):
            text = self.rfile.read(int(self.headers["Content-Length"] or 0))
            body = json.loads(text) if text and text != b"null" else {}
            if self.path != "/inference/v1/generate":
                return self._answer(*fake.reply(self.path, body))
            if refused := fake.receive(body):
                return self._answer(400, {"error": {"message": refused, "code": 400}})
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for event in fake.events(body):
                    if event is None:
                        self.close_connection = True
                        self.connection.shutdown(socket.SHUT_RDWR)
                        return None
                    self._chunk(f"data: {json.dumps(event)}\n\n")
                self._chunk("data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                pass  # the client has dropped the request

        def _chunk(self, text: str):
            self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
            self.wfile.flush()

        def _answer(self, status: int, body: dict):
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler


@contextmanager
def fake_vllm(served=None):
    """(FakeVLLM, url) of a server on a free port."""
    fake = FakeVLLM(served)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(fake))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield fake, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
