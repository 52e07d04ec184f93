"""A `vllm serve` in the service of one run: found, checked, and given the run's weights before each generation."""

from __future__ import annotations

import time
from pathlib import Path

from trainer.engines.vllm.server_http import GO_ON, ServerError, ServerHTTP, ServerLost, ServerRefusal

START = "start it with scripts/vllm_server.py MODEL, or correct vllm_server_base_url (or vllm_server_host and _port)"
# What two models must share for the weights of one to be those of the other.
FACTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
INITIAL = "default"  # what a server calls the weights with which it started


def facts_of(config) -> dict:
    """What defines a model, from its transformers config."""
    text = config.get_text_config()
    return {"model_type": config.model_type} | {name: getattr(text, name, None) for name in FACTS}


class VLLMServer:
    """A server and the weights that it should have.

    Every process of a run has one, and all of them count the weights alike; one process sends them.

    Args:
        http: to the server.
        run: a name that no other run has.

    Attributes:
        version: of the weights that were sent last.
    """

    def __init__(self, http: ServerHTTP, run: str):
        self.http, self.run, self._sent = http, run, 0

    @property
    def version(self) -> str:
        return f"{self.run}:{self._sent}"

    def connect(self, model: dict, forbidden_ids: list[int], tokens: int) -> dict:
        """Waits until the server is up, checks that it serves this model, and installs the sampler of trees.

        Args:
            model: `facts_of` the run's model.
            forbidden_ids: tokens that are never sampled.
            tokens: that a prompt and its completion have at most.

        Returns:
            The server's description of itself.

        Raises:
            ServerError: it does not come up within the timeout, serves another model, or cannot serve trees.
        """
        self._wait_until_up()
        try:
            found = self.http.rpc("describe")
        except ServerRefusal as error:
            raise ServerError(
                f"{self.http.here} cannot serve rollout trees ({error.reason}): it needs this "
                "project's worker and vLLM's development endpoints; start it with scripts/vllm_server.py MODEL"
            ) from error
        different = [name for name, value in model.items() if found.get(name) != value]
        if different:
            theirs, ours = (", ".join(f"{name} {of.get(name)}" for name in different) for of in (found, model))
            raise ServerError(
                f"{self.http.here} serves another model ({theirs}) than the one being trained ({ours}): "
                "start it with the model of --model_name_or_path"
            )
        if found["max_model_len"] < tokens:
            raise ServerError(
                f"{self.http.here} takes {found['max_model_len']} tokens per request, but a prompt with "
                f"its completion may have {tokens}: start it with --max-model-len {tokens}, "
                "or lower max_prompt_length or max_completion_length"
            )
        self.http.rpc("use_tree_sampler", forbidden_ids=list(forbidden_ids))
        return found

    def count(self) -> None:
        """Notes that other weights are about to be sent, by this process or another."""
        self._sent += 1

    def load(self, folder: Path, adapter: str | None = None) -> None:
        """Gives the server weights, and drops everything that it computed with the last ones.

        Args:
            folder: with *.safetensors, or with an adapter, under the same path where the server runs.
            adapter: the name of the adapter in the folder; None for all weights.
        """
        try:
            if adapter is None:
                self.http.rpc("load_folder", folder=str(folder))
            else:
                self.http.post("/v1/load_lora_adapter", {"lora_name": adapter, "lora_path": str(folder)})
        except ServerRefusal as error:
            way_out = "the folder must be readable under this path where the server runs, on storage that both share"
            if adapter is not None:
                way_out += ", and the server started with --enable-lora and a --max-lora-rank of at least lora_r"
            raise ServerError(
                f"{self.http.here} cannot load the weights in {folder} ({error.reason}): {way_out}"
            ) from error
        self._forget()
        self.http.post("/update_weight_version", {"new_version": self.version})

    def unload(self, adapter: str) -> None:
        """Drops an adapter."""
        self.http.post("/v1/unload_lora_adapter", {"lora_name": adapter})

    def _forget(self) -> None:
        for attempt in range(5):  # blocks of requests that were just dropped are freed a moment later
            if self.http.post("/reset_prefix_cache").get("success"):
                break
            time.sleep(0.2 * 2**attempt)
        else:
            raise ServerError(
                f"{self.http.here} keeps requests of another client, which were computed with other "
                "weights: each run needs a server of its own"
            )
        self.http.post("/reset_mm_cache")
        self.http.post("/reset_encoder_cache")

    def check(self) -> None:
        """Raises ServerError unless the server has the weights that were sent last."""
        held = self.http.get("/weight_info").get("weight_version")
        if held == self.version:
            return
        if held == INITIAL:
            what = "was restarted and has the weights of its start"
        elif str(held).startswith(f"{self.run}:"):
            what = f"has older weights ({held}, not {self.version})"
        else:
            what = f"got the weights of another run ({held}), and each run needs a server of its own"
        raise ServerError(f"{self.http.here} {what}: {GO_ON}")

    def _wait_until_up(self) -> None:
        limit = time.monotonic() + self.http.timeout
        while True:
            try:
                self.http.get("/health", timeout=10)
                return
            except (ServerLost, ServerRefusal) as error:
                if time.monotonic() > limit:
                    raise ServerLost(
                        f"no vLLM server answers at {self.http.url} for {self.http.timeout:g} s (vllm_server_timeout): "
                        f"{START}"
                    ) from error
            time.sleep(min(1.0, self.http.timeout / 10))
