"""The benchmark of agent methods by gradients: parts add up to the whole, the gain is what Adam's step brings."""

import importlib

import pytest
from paths import ROOT


@pytest.fixture
def bench(monkeypatch):
    pytest.importorskip("bm25s")
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "lab"))
    return importlib.import_module("agent_gradients")


def test_gain_is_what_a_step_of_equal_size_for_every_weight_brings(bench, monkeypatch):
    import torch

    monkeypatch.setitem(bench.RECIPE, "learning_rate", 0.1)
    steady, noisy = (
        [torch.tensor([2.0, 0.0]), torch.tensor([2.0, 0.0])],
        [torch.tensor([4.0, 3.0]), torch.tensor([0.0, -3.0])],
    )
    reference = torch.tensor([5.0, 7.0])
    assert bench.gain(steady, reference) == pytest.approx((0.5, 0.0), abs=1e-6)
    mean, error = bench.gain(noisy, reference)
    assert mean == pytest.approx(0.5 * 2 / 8**0.5, abs=1e-6) and error > 0.3


@pytest.mark.slow
def test_first_and_later_turns_are_all_turns_and_the_policy_stays(bench, tmp_path):
    import torch

    (tmp_path / "policy").symlink_to(ROOT / "scripts" / "demo" / "tiny_text_model")
    trainer = bench.collect(bench.Gradients, {"loss_type": "dapo"}, 2, 7, tmp_path)
    kept = {name: torch.stack(found) for name, found in trainer.kept.items()}
    assert kept["gain"].shape == kept["first"].shape and min(one.abs().max() for one in kept.values()) > 1e-3
    assert (kept["first"] + kept["later"] - kept["gain"]).abs().max() < 1e-6
    before = bench.make_trainer(bench.settings_for({"output_dir": str(tmp_path)}), 7).model.state_dict()
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.model.state_dict().items())
    assert len(trainer.sampled) == 2 and min(trainer.sampled) > 1000
