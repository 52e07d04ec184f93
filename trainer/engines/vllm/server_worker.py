"""What `vllm serve` runs in its workers for training: the sampler of trees, weights from a folder, who it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from trainer.engines.vllm.server import facts_of
from trainer.engines.vllm.worker import TreeWorker


class ServedWorker(TreeWorker):
    """Worker extension of a server; its methods are called over HTTP, so arguments and results are JSON."""

    def describe(self) -> dict:
        """The model's facts and the engine's sizes."""
        config = self.vllm_config
        return facts_of(config.model_config.hf_config) | {
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "block_size": config.cache_config.block_size,
        }

    def load_folder(self, folder: str) -> None:
        """Replaces all weights by those in the folder's safetensors files."""
        self.model_runner.reload_weights(weights_iterator=_weights_in(Path(folder)))


def _weights_in(folder: Path) -> Iterator[tuple[str, Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no *.safetensors in {folder}")
    for file in files:
        with safe_open(file, framework="pt") as opened:
            yield from ((name, opened.get_tensor(name)) for name in opened.keys())  # noqa: SIM118 (not a dict)
