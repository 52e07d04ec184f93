"""vLLM in this process: its engine's own loop of requests and steps, on weights that are replaced in place."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor
from vllm import EngineArgs, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from task.errors import UserError
from trainer.engines.requests import Request, Sampled
from trainer.engines.vllm.arguments import entropy_id, extra_args
from trainer.engines.vllm.engine_arguments import engine_arguments
from trainer.engines.vllm.media import engine_input
from trainer.engines.vllm.size import Size


class Colocated:
    """`Requests` on an engine of this process.

    The engine starts with random weights: call `load` before the first request.

    Args:
        config: the model's transformers config.
        processor: the model's processor or tokenizer; vLLM reads its settings, and never calls it.
        dtype: of weights and activations.
        size: of the engine.
        eos_ids: tokens that end a request.
        forbidden_ids: tokens that are never sampled.
        settings: further arguments of `vllm.EngineArgs`.
    """

    def __init__(self, config, processor, dtype: torch.dtype, size: Size, eos_ids, forbidden_ids, **settings):
        self.config, self.eos_ids, self.max_length = config, list(eos_ids), size.max_length
        self.version, self.lora = 0, None
        self.vocab_size = config.get_text_config().vocab_size
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            processor.save_pretrained(folder)
            arguments = engine_arguments(folder, config, dtype, size) | settings
            self.engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        # vLLM would destroy all process groups with an engine, those of the trainer and of other engines too
        self.engine.engine_core._finalizer.detach()
        self.block_size = self.engine.vllm_config.cache_config.block_size
        self.engine.collective_rpc("use_tree_sampler", args=(list(forbidden_ids),))
        self._new: set[str] = set()

    # ---- Requests -------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        if (length := len(request.ids) + request.max_tokens) > self.max_length:
            raise UserError(
                f"use_vllm: a prompt and completion of {length} tokens do not fit into vllm_max_model_length="
                f"{self.max_length}: raise it, or lower max_prompt_length or max_completion_length"
            )
        given = engine_input(request, self.config, self.version)
        self.engine.add_request(request.name, given, self._parameters(request), lora_request=self.lora)
        self._new.add(request.name)

    def step(self) -> list[Sampled]:
        return [found for output in self.engine.step() if (found := self._sampled(output)) is not None]

    def abort(self, names: Iterable[str]) -> None:
        self.engine.abort_request(list(names))

    def _parameters(self, request: Request) -> SamplingParams:
        return SamplingParams(
            max_tokens=request.max_tokens,
            stop_token_ids=self.eos_ids,
            ignore_eos=True,
            logprobs=1,
            detokenize=False,
            extra_args=extra_args(request.draw),
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,
        )

    def _sampled(self, output) -> Sampled | None:
        (completion,) = output.outputs
        if not completion.token_ids:
            return None
        (token,), (values,) = completion.token_ids, completion.logprobs
        new = output.request_id in self._new
        self._new.discard(output.request_id)
        return Sampled(
            output.request_id,
            token,
            values[token].logprob,
            values[entropy_id(token, self.vocab_size)].logprob,
            output.num_cached_tokens if new else None,
        )

    # ---- Weights --------------------------------------------------------------------------------------------------

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replaces all weights; what the old ones computed is forgotten.

        Args:
            weights: every weight by its name in the checkpoint, a tied output layer too.
        """
        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self._forget()

    def load_adapter(self, save: Callable[[Path], None]) -> None:
        """Replaces the adapter; needs the setting `enable_lora`.

        Each one has a name and a number of its own, since vLLM would find the old one under the same.
        """
        self._forget()
        previous, name = self.lora, f"adapter {self.version}"
        with tempfile.TemporaryDirectory() as folder:
            save(Path(folder))
            self.lora = LoRARequest(name, self.version, folder)
            if previous is not None:
                self.engine.remove_lora(previous.lora_int_id)
            self.engine.add_lora(self.lora)

    def wake(self) -> None:
        if self.engine.is_sleeping():
            self.engine.wake_up()

    def rest(self) -> None:
        if self.engine.vllm_config.model_config.enable_sleep_mode:
            self.engine.sleep(level=1)

    def _forget(self) -> None:
        self.version += 1
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache, since requests are running while weights are replaced")
        self.engine.reset_encoder_cache()
        self.engine.reset_mm_cache()
