"""GSPO on trees: a thought and an answer are each a sequence, with one ratio over its own tokens and its own clip."""

import pytest
import torch
from loss_cases import ANSWERS, CLIP, LEAVES, THOUGHTS, first_is_right, token_logps
from trainer_cases import largest_gap, norm, run, script, text_trainer, thought_tree
from transformers import TrainerCallback


def part_loss(new, old, advantage: float):
    """The clipped objective of one sequence: its ratio is that of the geometric mean over its tokens."""
    ratio = (new - old).mean().exp()
    return -torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage), ratio.item()


class Independent(TrainerCallback):
    """Computes the loss and its gradients again before each update, with advantages worked out in test_trainer_loss."""

    def __init__(self, trainer):
        self.trainer, self.old = trainer, None
        self.losses, self.gradients, self.ratios = [], [], []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        model, prompt = self.trainer.model, self.trainer.generation.rollout.prompts[0].ids
        new = token_logps(model, prompt)
        self.old = self.old or [row.detach() for row in new]
        thought, answer = 0.25 / (0.125**0.5 + 1e-4), [0.75 / (0.5 + 1e-4)] + [-0.25 / (0.5 + 1e-4)] * 3
        losses, ratios = [], []
        for row, (k, _) in enumerate(LEAVES):
            cut = len(THOUGHTS[k])
            for part, advantage in ((slice(cut), (1 - 2 * k) * thought), (slice(cut, None), answer[row])):
                loss, ratio = part_loss(new[row][part], self.old[row][part], advantage)
                losses.append(loss / len(LEAVES))
                ratios.append(ratio)
        loss = sum(losses)
        named = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
        found = torch.autograd.grad(loss, [p for _, p in named])
        self.losses.append(loss.item())
        self.gradients.append({name: gradient for (name, _), gradient in zip(named, found, strict=True)})
        self.ratios.append(ratios)


def test_loss_and_gradients_worked_out_by_hand(tiny_text, tmp_path, monkeypatch):
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, THOUGHTS, ANSWERS))
    changes = {"importance_sampling_level": "sequence", "loss_type": "grpo", "num_iterations": 2, "max_steps": 2}
    trainer = text_trainer(
        tiny_text, tmp_path, rows=1, reward=first_is_right, perturb=0.01, learning_rate=0.03, **changes
    )
    expected = Independent(trainer)
    trainer.add_callback(expected)
    seen = run(trainer)
    assert max(expected.ratios[1]) > 1 + CLIP, "the second update must have something to clip"
    thought, answer = expected.ratios[1][:2]
    assert abs(thought - answer) > 0.01, "the two parts of a row have ratios of their own"
    assert seen.losses == pytest.approx(expected.losses, abs=2e-5)
    for got, wanted in zip(seen.gradients, expected.gradients, strict=True):
        assert norm(wanted) > 0.1
        assert largest_gap(got, wanted) < 2e-5 * norm(wanted)
