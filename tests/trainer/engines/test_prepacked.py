"""Weights packed for sampling on a CPU: the same logits, and the layers as before afterwards."""

import pytest
import torch
from torch import nn

from trainer.engines import prepacked as module
from trainer.engines.prepacked import prepacked


class Model(nn.Module):
    """A large layer with a bias, one without, a small one, and one of another data type."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256, bias=False)
        self.small = nn.Linear(256, 64)
        self.half = nn.Linear(256, 1024, dtype=torch.bfloat16)

    def forward(self, inputs):
        return self.small(self.down(torch.relu(self.up(inputs))))


def packed_layers(model) -> list[str]:
    return [name for name, layer in model.named_modules() if "forward" in vars(layer)]


@pytest.mark.parametrize("shape", [(1, 256), (4, 1, 256), (2, 77, 256)])
def test_packed_layers_compute_the_same(shape):
    model, inputs = Model(), torch.randn(shape)
    with torch.no_grad():
        expected = model(inputs)
        with prepacked(model):
            assert packed_layers(model) == ["up", "down"]
            assert torch.allclose(model(inputs), expected, atol=1e-5)
        assert packed_layers(model) == []
        assert torch.equal(model(inputs), expected)


def test_layers_are_restored_after_an_error_and_hooks_still_run():
    model, calls = Model(), []
    model.up.register_forward_hook(lambda *given: calls.append(1))
    with pytest.raises(RuntimeError, match="shape"), prepacked(model), torch.no_grad():
        model(torch.randn(2, 256)) @ torch.randn(3, 3)
    assert calls == [1]
    assert packed_layers(model) == []


def test_weights_changed_between_generations_are_packed_anew():
    model, inputs = Model(), torch.randn(3, 256)
    with torch.no_grad():
        with prepacked(model):
            model(inputs)
        model.up.weight.mul_(2)
        expected = model(inputs)
        with prepacked(model):
            assert torch.allclose(model(inputs), expected, atol=1e-5)


def test_a_model_whose_copy_would_be_too_large_is_left_alone(monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 2 * 256 * 1024 - 1)
    model = Model()
    with prepacked(model):
        assert packed_layers(model) == []


def test_autocast_keeps_its_data_type():
    model = Model()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), prepacked(model):
        assert packed_layers(model) == []
        assert model.up(torch.randn(2, 256)).dtype == torch.bfloat16
