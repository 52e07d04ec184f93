"""The correction of sampling is TRL's: same weights, same losses, same gradients as TRL's own code for vLLM."""

import math

import pytest
import torch
from trainer_cases import largest_gap, norm, run, script, text_trainer, thought_tree
from trl import GRPOTrainer

from trainer.logprobs.sampling_correction import SamplingCorrection, corrected
from trainer.swapped import swapped

THOUGHTS = [[301, 302, 303], [311, 312, 313, 314, 315]]
ANSWERS = [[[321, 322], [331, 332, 333, 334]], [[341], [351, 352, 353, 354, 355, 356]]]
BOUNDS = SamplingCorrection("token_truncate", 0.5, 2.0)


def trl_weights(old, sampled, mask, correction):
    """The lines of TRL's `_generate_and_score_completions` for the token modes."""
    ratio = torch.exp(torch.nan_to_num((old - sampled) * mask, nan=0.0))
    if correction.mode == "token_truncate":
        return torch.clamp(ratio, min=correction.low, max=correction.high)
    low = correction.low if correction.low is not None else -math.inf
    high = correction.high if correction.high is not None else math.inf
    return ratio.masked_fill((ratio < low) | (ratio > high), value=0.0)


def sampled_elsewhere(prompt_id, policy):
    """A tree whose log-probs are another engine's: off by up to 1.5 nats from log(1 / 704), one of them unknown."""
    tree = thought_tree(prompt_id, THOUGHTS, ANSWERS)
    generator = torch.Generator().manual_seed(3)
    for node in tree.nodes:
        noise = 3 * torch.rand(len(node.token_ids), generator=generator) - 1.5
        node.logprobs = (noise - math.log(704)).tolist()
    tree.nodes[0].logprobs[1] = math.nan
    return tree


def as_trl_does(correction, original):
    """TRL's loss as with `use_vllm`, for a trainer without a correction of its own."""

    def loss(self, model, inputs):
        old = inputs.get("old_per_token_logps", self._row_logps(model, inputs).detach())
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        ratio = trl_weights(old, inputs["sampling_per_token_logps"], mask, correction)
        with swapped(self, use_vllm=True, vllm_importance_sampling_correction=True):
            return original(self, model, inputs | {"importance_sampling_ratio": ratio})

    return loss


TWICE = {"num_iterations": 2}
CHAINS = {"method": "grpo", "num_generations": 4, "max_completion_length": 16}
CASES = {
    "two terms": ("token_truncate", {"loss_type": "grpo"}),
    "two terms, two iterations": ("token_mask", {"loss_type": "dapo"} | TWICE),
    "joint": ("token_mask", {"loss_type": "dr_grpo", "objective": "joint"}),
    "chains": ("token_truncate", {"loss_type": "bnpo"} | CHAINS),
    "cispo": ("token_truncate", {"loss_type": "cispo", "epsilon_high": 1.1} | TWICE),
    "sapo": ("token_mask", {"loss_type": "sapo"} | TWICE),
    "sequences": ("token_truncate", {"loss_type": "grpo", "importance_sampling_level": "sequence"} | TWICE),
}
FAST = ("two terms", "two terms, two iterations")
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("case", NAMES)
def test_losses_and_gradients_are_those_of_trl(tiny_text, tmp_path, monkeypatch, case):
    script(monkeypatch, sampled_elsewhere)
    mode, changes = CASES[case]
    changes = {"rows": 1, "max_steps": 2, "beta": 0.1, "perturb": 0.01, "learning_rate": 0.03, **changes}
    correction = SamplingCorrection(mode, 0.5, 2.0)

    def ends(name, own):
        trainer = text_trainer(tiny_text, tmp_path / name, **changes)
        trainer.correction = own
        return run(trainer)

    ours, without = ends("ours", correction), ends("without", None)
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", as_trl_does(correction, GRPOTrainer._compute_loss))
    theirs = ends("theirs", None)
    assert ours.losses == pytest.approx(theirs.losses, abs=1e-6)
    for got, wanted, other in zip(ours.gradients, theirs.gradients, without.gradients, strict=True):
        assert largest_gap(got, wanted) < 1e-6
        assert largest_gap(other, wanted) > 1e-3 * norm(wanted), "the correction must matter in this case"


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask"])
@pytest.mark.parametrize("bounds", [(None, 3.0), (0.5, None), (0.5, 2.0)])
def test_weights_are_those_of_trl(mode, bounds):
    generator = torch.Generator().manual_seed(0)
    old, sampled = -5 * torch.rand(2, 4, 50, generator=generator)
    sampled[0, :5] = math.nan
    sampled[1, :5] = old[1, :5]
    correction = SamplingCorrection(mode, *bounds)
    found = correction.weights(old.requires_grad_(), sampled)
    assert not found.requires_grad
    assert torch.equal(found, trl_weights(old.detach(), sampled, torch.ones(4, 50), correction))
    assert (found[:2, :5] == 1).all()


def test_every_part_gets_the_weights_and_nothing_else_does():
    old, sampled = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
    inputs = {
        "advantages": torch.tensor([[2.0, 3.0]]),
        "thought_advantages": torch.tensor([2.0]),
        "answer_advantages": torch.tensor([-1.0]),
        "sampling_per_token_logps": sampled,
        "ref_per_token_logps": old,
    }
    weights = torch.tensor([[math.exp(0.5), 0.5]])
    found = corrected(inputs, old, BOUNDS)
    assert found.keys() == inputs.keys()
    assert torch.allclose(found["advantages"], inputs["advantages"] * weights)
    assert torch.allclose(found["thought_advantages"], 2 * weights)
    assert torch.allclose(found["answer_advantages"], -weights)
    assert all(found[name] is inputs[name] for name in ("sampling_per_token_logps", "ref_per_token_logps"))
    assert corrected(inputs, old, None) is inputs
