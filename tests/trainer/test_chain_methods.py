"""Methods of independent completions: the gradient of a step, against the papers' objectives written out here."""

import pytest
import torch
from trainer_cases import chain_tree, largest_gap, norm, run, script, text_trainer
from transformers import TrainerCallback

# Four completions of each of two prompts, of unequal length, and their rewards.
COMPLETIONS = [[[301, 302, 303], [311], [321, 322], [331, 332, 333, 334]], [[341, 342], [351], [361], [371, 372, 373]]]
REWARDS = {301: 1.0, 311: 0.0, 321: 0.5, 331: 0.0, 341: 3.0, 351: 2.0, 361: 2.0, 371: 1.0}
LENGTH = 8


def reward(completion_ids, **kwargs):
    return [REWARDS[ids[0]] for ids in completion_ids]


class WrittenOut(TrainerCallback):
    """The gradient of -sum of weight[i] * advantage[i] * log-prob of completion i, before the update."""

    def __init__(self, trainer, advantages, weight):
        self.trainer, self.advantages, self.weight, self.gradient = trainer, advantages, weight, None

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        model, loss = self.trainer.model, 0.0
        for prompt, below, values in zip(
            self.trainer.generation.rollout.prompts, COMPLETIONS, self.advantages, strict=True
        ):
            for ids, advantage in zip(below, values, strict=True):
                logits = model(input_ids=torch.tensor([prompt.ids + ids])).logits[0, len(prompt.ids) - 1 : -1]
                logps = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
                loss = loss - advantage * logps.sum() * self.weight(len(ids))
        named = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
        found = torch.autograd.grad(loss, [p for _, p in named])
        self.gradient = {name: gradient for (name, _), gradient in zip(named, found, strict=True)}


# All rewards: mean 19/16, sum of squares 19.25; then the rewards minus the prompts' means 3/8 and 2.
STD = ((19.25 - 8 * (19 / 16) ** 2) / 7) ** 0.5 + 1e-4
AGAINST_PROMPTS = [[5 / 8, -3 / 8, 1 / 8, -3 / 8], [1.0, 0.0, 0.0, -1.0]]
PROMPT_STD = ((44 / 64 + 2) / 7) ** 0.5 + 1e-4

# settings, the advantages by hand, the weight of a completion of so many tokens
CASES = {
    "rloo": (  # means of the others 1/6, 1/2, 1/3, 1/2; 5/3, 2, 2, 7/3
        {"method": "rloo"},
        [[5 / 6, -1 / 2, 1 / 6, -1 / 2], [4 / 3, 0.0, 0.0, -4 / 3]],
        lambda tokens: 1 / (8 * LENGTH),
    ),
    "reinforce_plus_plus": (
        {"method": "reinforce_plus_plus"},
        [[(REWARDS[ids[0]] - 19 / 16) / STD for ids in below] for below in COMPLETIONS],
        lambda tokens: 1 / (8 * tokens),
    ),
    "reinforce_plus_plus, prompt": (
        {"method": "reinforce_plus_plus", "reward_baseline": "prompt"},
        [[difference / PROMPT_STD for difference in below] for below in AGAINST_PROMPTS],
        lambda tokens: 1 / (8 * tokens),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_a_step(tiny_text, tmp_path, monkeypatch, case):
    changes, advantages, weight = CASES[case]
    script(monkeypatch, lambda prompt_id, policy: chain_tree(prompt_id, COMPLETIONS[int(prompt_id[-1])]))
    size = {"num_generations": 4, "max_completion_length": LENGTH, "per_device_train_batch_size": 8}
    trainer = text_trainer(tiny_text, tmp_path, rows=2, reward=reward, perturb=0.01, **changes | size)
    expected = WrittenOut(trainer, advantages, weight)
    trainer.add_callback(expected)
    seen = run(trainer)
    assert trainer._logs["advantages"] == pytest.approx([a for values in advantages for a in values], rel=1e-6)
    assert norm(expected.gradient) > 0.1
    assert largest_gap(seen.gradients[0], expected.gradient) < 1e-5 * norm(expected.gradient)
