"""Sampling on a `vllm serve`: a serving engine whose weights are files that the server reads."""

from __future__ import annotations

import importlib.util
import shutil
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from task.errors import UserError
from trainer.engines.requests import Request
from trainer.engines.serving import Serving
from trainer.engines.vllm import INSTALL
from trainer.engines.vllm.arguments import extra_args
from trainer.engines.vllm.server import VLLMServer, facts_of
from trainer.engines.vllm.server_http import GO_ON, ServerError, ServerHTTP, server_url
from trainer.engines.vllm.server_requests import Medium, ServerRequests
from trainer.processes import Processes

SHARD = 4 << 30  # bytes per file


class Served(ServerRequests):
    """`WeightedRequests` on a server. One process writes and sends the weights; all processes send requests.

    Args:
        server: connected.
        description: what it says of itself.
        config: the model's transformers config.
        eos_ids: tokens with which a request ends.
        folder: for the weights, visible to the server; it exists only while they are sent.
        processes: of the run.
    """

    def __init__(
        self, server: VLLMServer, description: dict, config, eos_ids: list[int], folder: Path, processes: Processes
    ):
        super().__init__(
            server.http,
            server.version,
            eos_ids,
            description["block_size"],
            description["vocab_size"],
            media_of=lambda request: media_of(request, config, self.version),
            arguments_of=lambda request: extra_args(request.draw),
        )
        self.server, self.folder, self.processes = server, folder, processes
        self.dtype = getattr(torch, description["dtype"])

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self._send(lambda: write_weights(weights, self.folder, self.dtype))

    def load_adapter(self, save: Callable[[Path], None]) -> None:
        previous, name = self.adapter, f"adapter-{self.server.run}-{uuid.uuid4().hex[:8]}"
        self.adapter = self.processes.objects([name])[0]
        self._send(lambda: save(self.folder), self.adapter)
        if previous is not None and self.processes.rank == 0:
            self.server.unload(previous)

    def wake(self) -> None:
        """The server keeps its memory."""

    def rest(self) -> None:
        """Raises ServerError if the weights were replaced while they were sampled from."""
        if not self.failed:
            self.server.check()

    def _send(self, write: Callable[[], None], adapter: str | None = None) -> None:
        """Writes the folder and has it loaded, in one process; all processes raise what went wrong there."""
        self.server.count()
        fault = ""
        if self.processes.rank == 0:
            try:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder.mkdir(parents=True)
                write()
                self.server.load(self.folder, adapter)
            except UserError as error:
                fault = str(error)
            except OSError as error:
                fault = f"the weights for the vLLM server cannot be written to {self.folder} ({error}): {GO_ON}"
            finally:
                shutil.rmtree(self.folder, ignore_errors=True)
        fault = self.processes.objects([fault])[0]
        if fault:
            raise ServerError(fault)
        self.renew(self.server.version)


def write_weights(weights: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype) -> None:
    """Writes all weights as safetensors, in files of about 4 GB."""
    shard, size, number = {}, 0, 0
    for name, weight in weights:
        shard[name] = weight.to("cpu", dtype, copy=True).contiguous()  # a tied weight must not share memory
        size += shard[name].nbytes
        if size >= SHARD:
            save_file(shard, folder / f"model-{number:05d}.safetensors")
            shard, size, number = {}, 0, number + 1
    if shard:
        save_file(shard, folder / f"model-{number:05d}.safetensors")


def media_of(request: Request, config, version: str) -> list[Medium]:
    """The pictures and videos of a request, as the server takes them."""
    if not request.media:
        return []
    from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import encode_mm_kwargs_item

    from trainer.engines.vllm.media import engine_input

    given, found = engine_input(request, config, version), []
    for kind, items in given["mm_kwargs"].items():
        for item, name, place in zip(items, given["mm_hashes"][kind], given["mm_placeholders"][kind], strict=True):
            found.append(Medium(kind, name, place.offset, place.length, lambda item=item: encode_mm_kwargs_item(item)))
    return found


def served(trainer) -> Serving:
    """The serving engine of a run with `vllm_mode` server.

    Raises ServerError if the server does not come up, or serves something else.
    """
    args, module = trainer.args, trainer.module
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model.config, "vision_config") and importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"vllm_mode=server: pictures are sent in vLLM's own format, and vLLM is not installed here: {INSTALL}"
        )
    run = trainer.processes.objects([uuid.uuid4().hex[:12]])[0]
    server = VLLMServer(ServerHTTP(server_url(args), args.vllm_server_timeout), run)
    forbidden = module.forbidden_token_ids(trainer.processing_class)
    longest = model.config.get_text_config().max_position_embeddings
    tokens = min(args.max_prompt_length + args.max_completion_length, longest)
    description = server.connect(facts_of(model.config), forbidden, tokens)
    folder = Path(args.output_dir).resolve() / "vllm_weights"
    requests = Served(server, description, model.config, trainer.eos_token_ids, folder, trainer.processes)
    return Serving(requests, requests.dtype, shown=trainer.accelerator.is_main_process)
