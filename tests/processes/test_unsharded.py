"""FSDP2's weights are whole while rollouts are sampled: processes with unequal numbers of passes do not wait."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench")]
from transformers import Qwen2Config, Qwen2ForCausalLM
from two_processes import start

from trainer.engines.unsharded import unsharded


@pytest.mark.slow
def test_passes_of_unequal_number_and_training_afterwards():
    assert start([__file__], processes=2, timeout=120).count("as it was") == 2


def main() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=30))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=100, num_attention_heads=2, num_key_value_heads=1, **sizes))
    ids, mesh = torch.arange(6)[None], init_device_mesh("cpu", (2,))
    wanted = model(ids).logits.detach()
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    with torch.no_grad(), unsharded(model):
        assert not any(isinstance(weight, DTensor) for weight in model.parameters())
        for _ in range(1 + 5 * torch.distributed.get_rank()):  # as the engine calls it: not through the sharded root
            assert torch.equal(model.lm_head(model.model(ids).last_hidden_state), wanted)
    assert all(isinstance(weight, DTensor) for weight in model.parameters())
    logits = model(ids).logits
    assert torch.equal(logits, wanted)
    logits.sum().backward()
    assert all(isinstance(weight.grad, DTensor) for weight in model.parameters())
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    print("as it was", flush=True)


if __name__ == "__main__":
    main()
