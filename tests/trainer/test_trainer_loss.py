"""The two-part loss against arithmetic written out here, and its independence of how the batch is cut."""

import pytest
import torch
from loss_cases import ANSWERS, BETA, CISPO_CLIP, CLIP, LEAVES, THOUGHTS, first_is_right, token_logps
from trainer_cases import largest_gap, norm, run, script, text_trainer, thought_tree
from transformers import TrainerCallback

LOSSES = ("grpo", "dapo", "dr_grpo", "cispo")


def token_losses(new, old, ref, advantage: float, loss_type: str) -> torch.Tensor:
    """Clipped objective and KL (times the ratio, TRL's default) of the tokens of one row, with one advantage."""
    ratio = (new - old).exp()
    if loss_type == "cispo":
        loss = -ratio.clamp(max=CISPO_CLIP).detach() * advantage * new
    else:
        loss = -torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    return loss + BETA * ratio * ((ref - new).exp() - (ref - new) - 1)


def normalised(rows: list[torch.Tensor], loss_type: str) -> torch.Tensor:
    """Rows of token losses -> the loss of one part."""
    if loss_type == "grpo":
        return torch.stack([row.mean() for row in rows]).mean()
    if loss_type == "dr_grpo":
        return torch.cat(rows).sum() / (len(rows) * 16)  # max_completion_length: 8 + 8
    return torch.cat(rows).mean()


def written_out(new, old, ref, loss_type: str, objective: str, weight: float = 1.0) -> torch.Tensor:
    """Advantages of thoughts +-0.7071, of answers 1.5 and -0.5, as (R - mean) / (sample std + 1e-4).

    `weight` is that of the thoughts in a split loss.
    """
    thought = 0.25 / (0.125**0.5 + 1e-4)
    answer = [0.75 / (0.5 + 1e-4)] + [-0.25 / (0.5 + 1e-4)] * 3
    thoughts, answers = [], []
    for row, (k, _) in enumerate(LEAVES):
        cut, tokens = len(THOUGHTS[k]), (new[row], old[row], ref[row])
        thoughts.append(token_losses(*(x[:cut] for x in tokens), (1 - 2 * k) * thought, loss_type))
        answers.append(token_losses(*(x[cut:] for x in tokens), answer[row], loss_type))
    if objective == "joint":
        return normalised([torch.cat(pair) for pair in zip(thoughts, answers, strict=True)], loss_type)
    return weight * normalised(thoughts, loss_type) + normalised(answers, loss_type)


class Independent(TrainerCallback):
    """Computes loss and gradients of each update a second time, just before the optimiser moves the weights."""

    def __init__(self, trainer, *how):
        self.trainer, self.how = trainer, how
        self.old = self.ref = None
        self.losses, self.gradients, self.ratios = [], [], []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        model, prompt = self.trainer.model, self.trainer.generation.rollout.prompts[0].ids
        if self.old is None:
            with torch.no_grad():
                self.old, self.ref = token_logps(model, prompt), token_logps(self.trainer.ref_model, prompt)
        new = token_logps(model, prompt)
        loss = written_out(new, self.old, self.ref, *self.how)
        named = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
        self.losses.append(loss.item())
        gradients = torch.autograd.grad(loss, [p for _, p in named])
        self.gradients.append({name: gradient for (name, _), gradient in zip(named, gradients, strict=True)})
        self.ratios.append(torch.cat([(n - o).exp().detach() for n, o in zip(new, self.old, strict=True)]))


JOINT, WEIGHTED = (("grpo", "joint", 1.0), ("dapo", "joint", 1.0)), (("grpo", "split", 2.5), ("dapo", "split", 0.0))


@pytest.mark.parametrize(
    ("loss_type", "objective", "weight"), [*((loss, "split", 1.0) for loss in LOSSES), *JOINT, *WEIGHTED]
)
def test_loss_and_gradients_of_a_tree_worked_out_by_hand(
    tiny_text, tmp_path, monkeypatch, loss_type, objective, weight
):
    """Two updates on the same rollout: in the second the ratio is not 1, and some tokens are clipped."""
    script(monkeypatch, lambda prompt_id, policy: thought_tree(prompt_id, THOUGHTS, ANSWERS))
    trainer = text_trainer(
        tiny_text,
        tmp_path,
        rows=1,
        reward=first_is_right,
        perturb=0.01,
        loss_type=loss_type,
        objective=objective,
        thought_weight=weight,
        beta=BETA,
        epsilon_high=CISPO_CLIP if loss_type == "cispo" else None,
        num_iterations=2,
        max_steps=2,
        learning_rate=0.03,
    )
    expected = Independent(trainer, loss_type, objective, weight)
    trainer.add_callback(expected)
    seen = run(trainer)
    assert expected.ratios[0].sub(1).abs().max() < 1e-5
    assert expected.ratios[1].max() > 1.2, "the second update must have something to clip"
    assert seen.losses == pytest.approx(expected.losses, abs=2e-5)
    for got, wanted in zip(seen.gradients, expected.gradients, strict=True):
        assert norm(wanted) > 0.1
        assert largest_gap(got, wanted) < 2e-5 * norm(wanted)


def uneven_tree(prompt_id: str, policy):
    """A 2 x 2 tree of its own lengths and tokens for every prompt; row-2 has a thought that never closed."""
    n = int(prompt_id.removeprefix("row-"))
    generator = torch.Generator().manual_seed(n)

    def tokens(length):
        return torch.randint(300, 600, (length,), generator=generator).tolist()

    thoughts = [tokens(2 + n), tokens(7 - n)]
    answers = [[tokens(1 + n), tokens(8 - n)], [] if n == 2 else [tokens(3), tokens(2 * n + 1)]]
    return thought_tree(prompt_id, thoughts, answers)


def cut(tiny_text, folder, batch: int, window: int, **changes):
    """The gradients of runs over four prompts with `batch` rows per micro-batch, `window` of them per update."""
    steps = changes.setdefault("max_steps", 1)
    trainer = text_trainer(
        tiny_text, folder, per_device_train_batch_size=batch, gradient_accumulation_steps=window, **changes
    )
    seen = run(trainer)
    assert len(seen.gradients) == steps
    assert len(seen.losses) == steps * window
    return seen


@pytest.mark.parametrize("loss_type", LOSSES)
def test_accumulation_does_not_change_the_update(tiny_text, tmp_path, monkeypatch, loss_type):
    script(monkeypatch, uneven_tree)
    changes = {"loss_type": loss_type, "beta": BETA, "perturb": 0.01}
    whole = cut(tiny_text, tmp_path / "1x16", 16, 1, **changes)
    assert norm(whole.gradients[0]) > 0.1
    for batch, window in ((8, 2), (4, 4)):
        parts = cut(tiny_text, tmp_path / f"{window}x{batch}", batch, window, **changes)
        assert largest_gap(parts.gradients[0], whole.gradients[0]) < 1e-5 * norm(whole.gradients[0])
        assert sum(parts.losses) == pytest.approx(sum(whole.losses), abs=1e-5)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_generation_over_several_updates_counts_each_updates_own_tokens(tiny_text, tmp_path, monkeypatch, loss_type):
    """With steps_per_generation=4 and accumulation 2 TRL's own count would span both updates."""
    script(monkeypatch, uneven_tree)
    changes = {"loss_type": loss_type, "learning_rate": 0.0, "max_steps": 2}
    apart = cut(tiny_text, tmp_path / "apart", 4, 2, **changes)
    together = cut(tiny_text, tmp_path / "together", 4, 2, steps_per_generation=4, **changes)
    for got, wanted in zip(together.gradients, apart.gradients, strict=True):
        assert norm(wanted) > 0.1
        assert largest_gap(got, wanted) < 1e-5 * norm(wanted)
    assert largest_gap(apart.gradients[0], apart.gradients[1]) > 1e-2, "the two updates must differ"
